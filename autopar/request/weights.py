"""The `weights=` option: the weights that training starts from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

Init = Callable[[nn.Module], Any]
WeightsSource = str | Path | Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Weights:
    """The initial values of parameters and buffers, of which each rank reads its slices.

    - `source`: a .safetensors file, a directory of them or of `torch.distributed.checkpoint`, or a
      state dict; None: the model's own values.
    - `init`: initialises tensors on the meta device that the source lacks, called as by
      ``model.apply(init)``.  Without it the model's own ``_init_weights`` and ``reset_parameters`` do.
    """

    source: WeightsSource | None = None
    init: Init | None = None

    @classmethod
    def of(cls, given: Weights | WeightsSource | None) -> Weights:
        """Parse the argument ``weights=``: a `Weights`, or only its source."""
        return given if isinstance(given, Weights) else cls(given)


OF_THE_MODEL = Weights()
