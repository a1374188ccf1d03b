"""Sets the initial values of all tensors: from a weights source, an initialiser, or rank 0's model."""

from __future__ import annotations

from collections.abc import Mapping, Set
from functools import partial

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from autopar.errors import InputError
from autopar.request.weights import Weights
from autopar.runtime.state import from_first_rank, sent
from autopar.runtime.weights.initialise import Visits
from autopar.runtime.weights.match import FOR_PARALLELIZE, Dialect, Match, refuse_leftovers
from autopar.runtime.weights.source import Source, opened, refuse_different
from autopar.runtime.weights.target import Target


def fill(
    model: nn.Module,
    targets: Mapping[str, Target],
    dialect: Dialect,
    *,
    persistent: Set[str],
    weights: Weights,
    device_mesh: DeviceMesh,
    seed: int,
) -> None:
    """Set all targets; `model` is the user's, on the meta device or with values.

    The source must have every `persistent` tensor unless `weights.init` initialises those that it
    lacks.  Tensors that have values and are not in the source get rank 0's.
    """
    read: Set[str] = set()
    init = weights.init
    if weights.source is not None:
        source = opened(weights.source)
        refuse_different(source)
        wanted = {name: target for name, target in targets.items() if name in persistent}
        match = dialect.match(wanted, source)
        missing = match.missing if init is None else ()
        refuse_leftovers(source, missing, match.unexpected, FOR_PARALLELIZE)
        load(source, targets, match)
        read = match.names.keys()
    values = dict((*model.named_parameters(), *model.named_buffers()))
    lacking = {name for name, tensor in values.items() if tensor.is_meta} - read
    if init is not None and not lacking:
        raise InputError(
            "Weights(init=...) has nothing to initialise: every tensor on the meta device is in "
            "the source. Build the model under torch.device('meta'), or leave init out."
        )
    for name in [name for name in values if name not in read and name not in lacking]:
        targets[name].put(from_first_rank(values[name].detach(), device_mesh))
    if lacking:
        send = partial(sent, device_mesh=device_mesh)
        Visits(model, targets, lacking, send).run(init, seed)


def load(source: Source, targets: Mapping[str, Target], match: Match) -> None:
    """Read the matched tensors.  Raise `InputError` if the source has different values for tied ones."""
    source.fill({names[0]: targets[name] for name, names in match.names.items()})
    for name, names in match.names.items():
        first = targets[name].local.clone() if names[1:] else None
        for other in names[1:]:
            source.fill({other: targets[name]})
            if first is not None and not torch.equal(first, targets[name].local):
                raise InputError(
                    f"{source} has different values for {names[0]!r} and {other!r}, which the model "
                    "ties. Untie them in the model, or remove one of them."
                )
