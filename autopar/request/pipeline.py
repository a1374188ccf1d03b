"""The `pipeline=` option of `plan`, `parallelize` and the commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from autopar.errors import InputError
from autopar.request.layers import Layers
from autopar.utils.messages import argument, quoted

Shape = int | Sequence[int]
"""The mesh of one stage: a number of devices, or the sizes of the mesh axes."""
StagesLike = int | Sequence[Shape] | Literal["auto"]


@dataclass(frozen=True)
class Pipeline:
    """The stages of a pipeline and the schedule of its step.

    - `stages`: a number of stages; the mesh shape of each, such as ``[(2, 2), 4]``, which are assigned
      to consecutive ranks; or ``"auto"``, which decides whether to use stages, and chooses the fields
      that are not set.
    - `schedule`: the name of the order in which stages run microbatches
      (`autopar.pipeline.schedules`).
    - `microbatches`: the number of equal parts of a batch.
    - `cuts`: the first operators of the stages after the first.
    - `layers`: the number of the model's layers in each stage, or a `Layers`, in place of `cuts`.
    - `virtual`: the number of stages on each worker, for schedules that allow any, such as
      ``"interleaved"``.
    - `asynchronous`: permits schedules that update weights while microbatches are in flight, so that
      gradients are of older weights.
    """

    stages: StagesLike = "auto"
    schedule: str | None = None
    microbatches: int | None = None
    cuts: tuple[str, ...] = ()
    asynchronous: bool = False
    layers: Layers | Sequence[int] | None = None
    virtual: int | None = None

    def __post_init__(self) -> None:
        if not _is_stages(self.stages):
            raise InputError(
                f"{argument('stages', self.stages)}: pass a number ({argument('stages', 2)}), "
                f"the mesh of each ({argument('stages', [1, (1, 3)])}), or {quoted('auto')}."
            )
        for name in ("microbatches", "virtual"):
            count = getattr(self, name)
            if count is not None and not _is_count(count):
                raise InputError(f"{argument(name, count)}: pass a whole number, at least 1.")
        if isinstance(self.cuts, str):
            raise InputError(
                f"{argument('cuts', self.cuts)}: pass a list of operators' names, as [{self.cuts!r}]."
            )
        object.__setattr__(self, "cuts", tuple(self.cuts))
        self._check_layers()
        self._check_one_stage()

    def _check_layers(self) -> None:
        for name in ("layers", "virtual"):
            if self.stages == "auto" and (value := getattr(self, name)) is not None:
                raise InputError(
                    f"{argument(name, value)} is for stages of a given number: pass "
                    f"{argument('stages', 2)} too."
                )
        if self.layers is None:
            return
        if self.cuts:
            raise InputError(
                f"{argument('cuts', list(self.cuts))} and {argument('layers', self.layers)} both divide "
                "the model into stages: pass one of them."
            )
        object.__setattr__(self, "layers", Layers.of(self.layers))

    def _check_one_stage(self) -> None:
        if self.stages != 1:
            return
        for name in ("schedule", "microbatches", "cuts", "asynchronous", "layers", "virtual"):
            if value := getattr(self, name):
                raise InputError(
                    f"{argument(name, value)} is for pipelines: pass {argument('stages')} too. "
                    "(Without stages, train_step(microbatches=...) says how a step is divided.)"
                )

    @classmethod
    def of(cls, given: Pipeline | StagesLike) -> Pipeline:
        """Parse the argument ``pipeline=``: a `Pipeline`, or only its stages."""
        return given if isinstance(given, Pipeline) else cls(given)

    @property
    def is_one_stage(self) -> bool:
        """Whether the model is not divided into stages."""
        return self.stages == 1

    @property
    def is_open(self) -> bool:
        """Whether everything is left to the search, including whether to use stages."""
        return self == Pipeline()


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 1


def _is_stages(stages: object) -> bool:
    if stages == "auto" or type(stages) is int:
        return True
    if isinstance(stages, str) or not isinstance(stages, Sequence) or not stages:
        return False
    shapes = (shape if isinstance(shape, tuple | list) else (shape,) for shape in stages)
    return all(shape and all(type(size) is int for size in shape) for shape in shapes)
