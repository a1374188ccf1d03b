"""What a person says of the weights that training starts from: one frozen value."""

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
    """The values of parameters and buffers, which each rank reads in slices.

    - `source`: a .safetensors file, a directory of them or of `torch.distributed.checkpoint`, or a
      state dict; None: the model's own values.
    - `init`: makes what a model on the meta device lacks then, called as ``model.apply(init)`` would;
      without it the model's own ``_init_weights`` and ``reset_parameters``.
    """

    source: WeightsSource | None = None
    init: Init | None = None

    @classmethod
    def of(cls, given: Weights | WeightsSource | None) -> Weights:
        """Read what a user passed as ``weights=``: a `Weights`, or its source alone."""
        return given if isinstance(given, Weights) else cls(given)


OF_THE_MODEL = Weights()
