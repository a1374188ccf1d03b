"""What an optimizer's update of an entry depends on: that entry, its parameter, or all parameters.

Known classes are listed.  Others are tried on small tensors: their step is elementwise if parts of a
tensor are updated as the whole is, and treats each parameter by itself if it updates one alone as it
does among others.
"""

from __future__ import annotations

import copy
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import nn, optim

from autopar.request import _torch

Group = dict[str, Any]


class Coupling(Enum):
    """The tensors that the update of one entry depends on."""

    ENTRY = "the same entry of the parameter, its gradient and its state"
    PARAMETER = "the whole parameter, its gradient and its state"
    MODEL = "all parameters"


@dataclass(frozen=True)
class Dependence:
    """How an optimizer's parameters are coupled.

    `skips`: a parameter without a gradient is left as it is.  `failed`: why its class could not be
    tried, in which case the widest coupling is assumed.
    """

    coupling: Coupling
    skips: bool = True
    failed: str = ""


ELEMENTWISE = (
    optim.SGD, optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.Adamax,
    optim.Adagrad, optim.Adadelta, optim.RMSprop, optim.Rprop, optim.ASGD,
)  # fmt: skip
"""Optimizers of torch whose update of an entry depends on no other entry; no subclasses."""
WHOLE_PARAMETER = (
    "torch.optim.Adafactor",
    "torch.optim.Muon",
    "transformers.optimization.Adafactor",
)
"""Names of classes that treat each parameter by itself, and need it whole; no subclasses."""
WHOLE_MODEL = (optim.LBFGS,)
"""Classes that take products over all parameters."""
STAND_IN = "_autopar_stands_in"
LISTS = {"params", "param_names"}
"""Entries of a group with one element for each parameter."""
RATE = 0.0123
"""Learning rate of the trial: a schedule may begin at zero, where all updates are equal."""
SCALES = (1e-5, 1.0, 1e5, 1.0)
"""Sizes of the gradients of a trial's steps, so that clipping by a norm is reached."""
SHAPES: dict[int, tuple[int, ...]] = {
    0: (),
    1: (24,),
    2: (160, 144),
    3: (6, 8, 10),
    4: (8, 4, 3, 3),
}
"""Shapes of a trial by number of dims: large enough for factored and for 8-bit states."""
TOLERANCE = 1e-6
"""Relative difference of updates in float64 that counts as rounding."""


def dependence_of(optimizer: optim.Optimizer) -> Dependence:
    """Return how the parameters of an optimizer are coupled; other classes than the known are tried.

    The trial runs the class's own step with the settings of its groups, on plain tensors of float64.
    It leaves the optimizer and the random state as they were.
    """
    kind = type(optimizer)
    if kind in ELEMENTWISE:
        return Dependence(Coupling.ENTRY)
    if f"{kind.__module__}.{kind.__qualname__}" in WHOLE_PARAMETER:
        return Dependence(Coupling.PARAMETER)
    if isinstance(optimizer, WHOLE_MODEL):
        return Dependence(Coupling.MODEL)
    try:
        with torch.random.fork_rng(devices=_devices(optimizer)):
            return _tried(optimizer)
    except Exception as error:  # a user's step, on tensors that it may not expect
        return Dependence(Coupling.MODEL, False, f"{type(error).__name__}: {error}")


def wraps_another(optimizer: optim.Optimizer) -> bool:
    """Whether an optimizer hands its groups to another one, which steps on the parameters."""
    held = vars(optimizer)
    return "param_groups" not in held or any(
        isinstance(each, optim.Optimizer) for each in held.values()
    )


def twin(
    optimizer: optim.Optimizer, groups: list[Group], attributes: Mapping[str, Any]
) -> optim.Optimizer:
    """Return an optimizer of the same class with these groups and attributes, no hooks and no state."""
    made: optim.Optimizer = object.__new__(type(optimizer))
    setattr(made, STAND_IN, True)
    vars(made).update(_torch.without_hooks(optimizer))
    vars(made).update(attributes)
    made.param_groups, made.state = groups, defaultdict(dict)
    return made


def is_stand_in(optimizer: optim.Optimizer) -> bool:
    """Whether an optimizer is a twin of another."""
    return hasattr(optimizer, STAND_IN)


def own_attributes(optimizer: optim.Optimizer) -> dict[str, Any]:
    """Return the attributes that the optimizer's class and its users have added."""
    theirs = {*_torch.without_hooks(optimizer), "state", "param_groups", "step", STAND_IN}
    return {key: value for key, value in vars(optimizer).items() if key not in theirs}


def raw_step(optimizer: optim.Optimizer) -> Callable[..., Any]:
    """Return the class's step without torch's hooks around it."""
    step = type(optimizer).step
    found: Callable[..., Any] = getattr(step, "__wrapped__", step)
    return found if getattr(step, "hooked", False) else step


@dataclass(frozen=True)
class _Trial:
    """A trial's parameters after each step, stacked; its settings; whether it kept more elsewhere."""

    values: Sequence[torch.Tensor]
    settings: Sequence[Group]
    keeps_elsewhere: bool


class _Absent:
    """Takes the place of a parameter among a trial's attributes; a step that uses it fails."""


def _first(optimizer: optim.Optimizer) -> torch.Tensor:
    found: torch.Tensor = next(p for group in optimizer.param_groups for p in group["params"])
    return found


def _devices(optimizer: optim.Optimizer) -> list[int]:
    device = _first(optimizer).device
    return [device.index or 0] if device.type == "cuda" else []


def _tried(optimizer: optim.Optimizer) -> Dependence:
    """Compare steps on parameters together, on each alone, and on parts of each."""
    groups = [(settings, shapes) for settings, shapes in _groups(optimizer) if shapes]
    each = [(settings, shape) for settings, shapes in groups for shape in shapes]
    together = _run(optimizer, groups)
    alone = [_run(optimizer, [(settings, [shape])]) for settings, shape in each]
    skips = all(_skips(optimizer, *one) for one in each)
    left = [s for s, (_, shapes) in zip(together.settings, groups, strict=True) for _ in shapes]
    if (
        any(trial.keeps_elsewhere for trial in (together, *alone))
        or [trial.settings[0] for trial in alone] != left
        or not all(_equal(a.values[0], b) for a, b in zip(alone, together.values, strict=True))
    ):
        return Dependence(Coupling.MODEL, skips)
    by_entry = all(
        _is_elementwise(optimizer, *one, trial.values[0])
        for one, trial in zip(each, alone, strict=True)
    )
    return Dependence(Coupling.ENTRY if by_entry else Coupling.PARAMETER, skips)


def _groups(optimizer: optim.Optimizer) -> Iterator[tuple[Group, list[tuple[int, ...]]]]:
    """Yield the settings of each group, and shapes by its numbers of dims; the first occurs twice."""
    for group in optimizer.param_groups:
        dims = sorted({p.dim() for p in group["params"]})
        shapes = [SHAPES.get(count, (2,) * count) for count in dims]
        settings = {key: group[key] for key in group.keys() - LISTS}
        rate = settings.get("lr")
        if rate is not None:
            settings["lr"] = torch.full_like(rate, RATE) if isinstance(rate, torch.Tensor) else RATE
        yield settings, [*shapes, *shapes[:1]]


def _copy(optimizer: optim.Optimizer, groups: list[Group]) -> optim.Optimizer:
    """Return a twin whose attributes are copies, in which nothing stands for the parameters."""
    real = [optimizer, *(p for group in optimizer.param_groups for p in group["params"])]
    nothing = {id(each): _Absent() for each in real}
    return twin(optimizer, groups, copy.deepcopy(own_attributes(optimizer), {**nothing}))


def _run(
    optimizer: optim.Optimizer,
    groups: Sequence[tuple[Group, Sequence[tuple[int, ...]]]],
    part: Any = ...,
) -> _Trial:
    """Step on tensors of these shapes, or on a part of each; equal shapes have equal values."""
    device = _first(optimizer).device
    shapes = [shape for _, several in groups for shape in several]
    made: list[Group] = []
    for settings, several in groups:
        values = [_drawn(shape, 0, device)[part].clone() for shape in several]
        made.append({**copy.deepcopy(settings), "params": [nn.Parameter(v) for v in values]})
    parameters: list[torch.Tensor] = [p for group in made for p in group["params"]]
    trial = _copy(optimizer, made)
    before = _kept(trial)
    courses = [[p.detach().clone()] for p in parameters]
    for number, scale in enumerate(SCALES):
        for parameter, shape in zip(parameters, shapes, strict=True):
            parameter.grad = scale * _drawn(shape, number + 1, device)[part].clone()
        raw_step(optimizer)(trial)
        for so_far, parameter in zip(courses, parameters, strict=True):
            so_far.append(parameter.detach().clone())
    keys = {id(key) for key in trial.state} - {id(p) for p in parameters}
    left = [{key: group[key] for key in group.keys() - LISTS} for group in made]
    elsewhere = bool(keys) or before != _kept(trial)
    return _Trial([torch.stack(each) for each in courses], left, elsewhere)


def _drawn(shape: tuple[int, ...], number: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1 + number)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(device)


def _kept(trial: optim.Optimizer) -> list[bytes]:
    """Return attributes, and settings that are no numbers, as bytes that can be compared."""
    several = [own_attributes(trial)]
    for group in trial.param_groups:
        others = {k: v for k, v in group.items() if not isinstance(v, (bool, int, float))}
        several.append({k: v for k, v in others.items() if k not in LISTS})
    return [_pickled(values) for values in several]


def _pickled(values: Mapping[str, Any]) -> bytes:
    """Return values as bytes; those that cannot be pickled by their identity."""

    def bytes_of(value: Any) -> bytes:
        try:
            return pickle.dumps(value)
        except Exception:  # each type raises its own
            return str(id(value)).encode()

    return pickle.dumps({key: bytes_of(value) for key, value in sorted(values.items())})


def _skips(optimizer: optim.Optimizer, settings: Group, shape: tuple[int, ...]) -> bool:
    """Whether a parameter without a gradient keeps its values and gets neither gradient nor state.

    A step that cannot do without a gradient skips none.
    """
    value = _drawn(shape, 0, _first(optimizer).device)
    parameter = nn.Parameter(value.clone())
    trial = _copy(optimizer, [{**copy.deepcopy(settings), "params": [parameter]}])
    try:
        raw_step(optimizer)(trial)
    except Exception:  # as of None.norm()
        return False
    is_left = parameter.grad is None and torch.equal(parameter.detach(), value)
    return is_left and not trial.state.get(parameter)


def _is_elementwise(
    optimizer: optim.Optimizer, settings: Group, shape: tuple[int, ...], whole: torch.Tensor
) -> bool:
    """Whether two parts of a tensor are updated as within it: its first rows, and its last columns."""
    if not shape:
        return True
    rows = (slice(0, max(1, shape[0] * 3 // 8)),)
    columns = (..., slice(shape[-1] * 3 // 8, None))
    return all(
        _equal(_run(optimizer, [(settings, [shape])], part).values[0], whole[(slice(None), *part)])
        for part in (rows, columns)
    )


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether all updates are equal but for rounding, relative to the largest entry of each step."""
    for mine, theirs in zip(one.diff(dim=0), other.diff(dim=0), strict=True):
        limit = TOLERANCE * float(theirs.abs().max())
        if not bool((mine - theirs).abs().max() <= limit):
            return False
    return True
