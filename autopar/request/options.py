"""The options of `plan` and `parallelize` besides model and mesh, as one frozen value."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from autopar.errors import InputError
from autopar.ir.blocks import MODES, Recompute
from autopar.request.batches import Batches
from autopar.request.compression import Compression
from autopar.request.constraints import Constraint, Given
from autopar.request.optimizers import ADAMW, OptimizerLike, Update, name_of, update_of
from autopar.request.pipeline import Pipeline, StagesLike
from autopar.request.planning import Planning
from autopar.utils.messages import argument, of_python, quoted

Constraints = Given | tuple[Constraint, ...] | str | Path
Loss = Callable[..., Any]
Value = TypeVar("Value")
GATHERS = "gathers"
RECOMPUTATIONS = ("none", GATHERS, *MODES[1:])
"""What the backward may compute again: modes of blocks, or all-gathers of activations alone."""
ONE_STAGE, WHOLE_BATCHES, USUAL = Pipeline(1), Batches(), Planning()
PRECISIONS = "float32", "bfloat16", "float16", "bfloat16/bfloat16", "float16/float16"
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


@dataclass(frozen=True)
class Precision:
    """The precision of a step.

    - `compute`: parameters and floating-point inputs are cast to this dtype for the step; parameters
      at rest keep their own.
    - `autocast`: dtypes are chosen per operator, as under ``torch.autocast`` with this dtype.
    - `reduces_low`: gradients are summed over ranks in `compute`, not in the dtype of parameters at
      rest.  The text is ``bfloat16/bfloat16``.
    """

    compute: torch.dtype | None = None
    autocast: torch.dtype | None = None
    reduces_low: bool = False

    @classmethod
    def of(cls, given: Any) -> Precision:
        """Parse None, one of `PRECISIONS`, a dtype, or a ``torch.autocast`` object."""
        if given is None or isinstance(given, Precision):
            return given or cls()
        if isinstance(given, torch.autocast):
            return cls(autocast=given.fast_dtype)
        name = str(given).removeprefix("torch.")
        if name not in PRECISIONS:
            raise InputError(
                f"{argument('precision', given)} is unknown: pass {', '.join(map(quoted, PRECISIONS))}"
                + of_python(", None, or torch.autocast('cpu', dtype=torch.bfloat16)")
                + "."
            )
        return cls._named(name)

    @classmethod
    def _named(cls, text: str) -> Precision:
        """Parse ``bfloat16`` or ``bfloat16/bfloat16``."""
        name, _, reduction = text.partition("/")
        return cls(compute=getattr(torch, name), reduces_low=bool(reduction))

    @classmethod
    def parse(cls, text: str) -> Precision:
        """Parse the text that `str` gives."""
        if text == str(cls()):
            return cls()
        if text in PRECISIONS:
            return cls._named(text)
        kind, _, name = text.rpartition(" ")
        dtype = getattr(torch, name, None)
        if not isinstance(dtype, torch.dtype):
            raise InputError(f"Cannot read the precision {text!r}.")
        return cls(autocast=dtype) if kind == "autocast" else cls(compute=dtype)

    def __str__(self) -> str:
        if self.autocast is not None:
            return f"autocast {str(self.autocast).removeprefix('torch.')}"
        if self.compute is None:
            return "as the model"
        name = str(self.compute).removeprefix("torch.")
        return f"{name}/{name}" if self.reduces_low else name


@dataclass(frozen=True)
class Options:
    """The keyword arguments of `autopar.plan`, parsed and validated."""

    loss: Loss | None = None
    optimizer: str = "AdamW"
    update: Update = ADAMW
    """What the optimizer keeps for a parameter, and what its update reads."""
    precision: Precision = Precision()
    memory_limit: float | None = None
    preset: str | None = None
    constraints: Constraints | None = None
    recompute: str | None = None
    """One of `RECOMPUTATIONS`; None: as the memory limit requires."""
    compression: Compression | None = None
    """How gradients travel compressed; None: they do not."""
    pipeline: Pipeline = ONE_STAGE
    batches: Batches = WHOLE_BATCHES
    planning: Planning = USUAL

    @classmethod
    def of(
        cls,
        *,
        loss: Loss | None = None,
        optimizer: OptimizerLike = torch.optim.AdamW,
        precision: Any = None,
        memory_limit: float | str | None = None,
        preset: str | None = None,
        constraints: Constraints | None = None,
        recompute: str | None = None,
        compression: Compression | str | None = None,
        pipeline: Pipeline | StagesLike = 1,
        batches: Batches | None = None,
        planning: Planning | None = None,
    ) -> Options:
        """Parse a user's arguments.  Raise `InputError` if one is invalid."""
        if recompute not in (None, *RECOMPUTATIONS):
            raise InputError(
                f"{argument('recompute', recompute)} is unknown: pass "
                f"{', '.join(map(quoted, RECOMPUTATIONS))}, or leave {argument('recompute')} out to let "
                "the memory limit decide."
            )
        return cls(
            loss,
            name_of(optimizer),
            update_of(optimizer),
            Precision.of(precision),
            nbytes(memory_limit),
            preset,
            constraints,
            recompute,
            Compression.of(compression),
            Pipeline.of(pipeline),
            value_of(Batches, "batches", batches),
            value_of(Planning, "planning", planning),
        )._checked()

    @property
    def block_mode(self) -> Recompute | None:
        """The mode of every block; None: as the memory limit requires."""
        if self.regathers:
            return "none"
        return next((mode for mode in MODES if mode == self.recompute), None)

    @property
    def regathers(self) -> bool:
        """Whether the backward repeats all-gathers of activations."""
        return self.recompute == GATHERS

    def _checked(self) -> Options:
        """Return itself; raise `InputError` for options that exclude each other."""
        if self.precision.reduces_low and self.compression is not None:
            raise InputError(
                f"{argument('precision', str(self.precision))} and "
                f"{argument('compression', str(self.compression))} both say how gradients travel: leave "
                "one out."
            )
        if self.pipeline.is_one_stage:
            return self
        others = (
            ("local", self.batches.local, False),
            ("source", self.planning.source, None),
            ("replan", self.batches.replan, True),
            ("compression", self.compression, None),
            ("precision", str(self.precision) if self.precision.reduces_low else None, None),
        )
        for name, given, usual in others:
            if given != usual:
                raise InputError(
                    f"{argument(name, given)} is not available for pipelines yet; leave it out, "
                    f"or {argument('stages')}."
                )
        return self

    def __str__(self) -> str:
        """Text that is equal on ranks with equal options, except callables and files."""
        return (
            f"optimizer={self.optimizer} precision={self.precision} memory={self.memory_limit} "
            f"preset={self.preset} constraints={self.constraints} local={self.batches.local} "
            f"outputs={self.batches.outputs} recompute={self.recompute} "
            f"compression={self.compression} "
            f"allow_undivided={self.planning.allow_undivided} pipeline={self.pipeline}"
        )


def value_of(kind: type[Value], name: str, given: Value | None) -> Value:
    """Return an option value, or the default for None.  Raise `InputError` for another type."""
    if given is None:
        return kind()
    if isinstance(given, kind):
        return given
    raise InputError(
        f"{argument(name, given)} is not a {kind.__name__}: pass {name}=autopar.{kind.__name__}(...)."
    )


def nbytes(limit: float | str | None) -> float | None:
    """Parse ``40e9``, ``"40GiB"`` or ``"512 MB"`` into bytes; ``"none"`` is infinity, None is None."""
    if limit is None:
        return None
    if limit in ("none", math.inf):
        return math.inf
    match = re.fullmatch(
        r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][0-9]{1,2})?)\s*([A-Za-z]*)\s*", str(limit)
    )
    if match is None or match[2].upper() not in _UNITS or float(match[1]) <= 0:
        raise InputError(
            f"Cannot read the memory limit {limit!r}: write 40e9, '40GiB', '512MB' or 'none'."
        )
    return float(match[1]) * _UNITS[match[2].upper()]
