"""The decisions of a plan, for each operator, conversion, parameter and block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from autopar.ir.blocks import Recompute
from autopar.ir.conversion import Step, Traffic
from autopar.ir.graph import Graph
from autopar.ir.pads import Pad
from autopar.plans.texts import ShardingText


@dataclass(frozen=True, slots=True)
class OpSharding:
    """How one operator is computed on shards: a sharding per operand and per output.

    `variants` names, per mesh axis, the local implementation that the sharding needs on that axis
    (such as ``vocab_parallel``), or ``""`` if the plain operator is correct on local tensors.
    """

    inputs: tuple[ShardingText, ...]
    outputs: tuple[ShardingText, ...]
    variants: tuple[str, ...]

    @property
    def variant(self) -> str:
        """The one variant that this sharding uses, or ``""``."""
        return next(filter(None, self.variants), "")

    def __str__(self) -> str:
        used = f"  via {self.variant}" if self.variant else ""
        return f"{', '.join(map(str, self.inputs))} -> {', '.join(map(str, self.outputs))}{used}"


@dataclass(frozen=True, slots=True)
class Choice:
    """The sharding chosen for one node of the graph."""

    node: str
    sharding: OpSharding


@dataclass(frozen=True, slots=True)
class Conversion:
    """One step that converts a tensor from a sharding that already exists to another.

    `regather`: the backward repeats the gather instead of keeping its result.  `forward` and `backward`
    are added collectives that perform it; "": autopar's own do.
    """

    tensor: str
    axis: int
    source: ShardingText
    target: ShardingText
    regather: bool = False
    forward: str = ""
    backward: str = ""

    def __repr__(self) -> str:
        """Return the fields; a plan without added collectives has the digest that it always had."""
        shown = [(each.name, getattr(self, each.name)) for each in fields(self)]
        return (
            f"Conversion({', '.join(f'{name}={value!r}' for name, value in shown if value != '')})"
        )

    @property
    def step(self) -> Step:
        """The conversion as a `Step`."""
        return Step(self.axis, self.source, self.target, self.forward, self.backward)

    @property
    def by(self) -> str:
        """Words such as ``, by mine`` and ``, backward by mine`` for added collectives."""
        forward = f", by {self.forward}" if self.forward else ""
        return forward + (f", backward by {self.backward}" if self.backward else "")


@dataclass(frozen=True, slots=True)
class ParameterPlan:
    """A parameter at rest and in the step.

    `stored` (S or I per axis) is the sharding for the optimizer and checkpoints; `leaf` (S, R or I) is
    the one for forward and backward.  `steps` convert from stored to leaf, once per training step; their
    backward is the gradient reduction.  `shape` is the global shape in the model.  With `pads` the shape
    in the step is larger, and `stored` refers to that one; see `autopar.ir.pads.rests`.  `regather` is
    the decision for gathers at the parameter's uses; the conversions record which of them are repeated.
    """

    name: str
    stored: ShardingText
    leaf: ShardingText
    steps: tuple[Conversion, ...] = ()
    shape: tuple[int, ...] = ()
    regather: bool = field(default=False, repr=False)  # digests cover what is emitted
    pads: tuple[Pad, ...] = field(default=(), repr=False)  # part of the graph's digest


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """The recomputation mode of one block."""

    path: str
    recompute: Recompute


def reduction_dtype(tensor: str, graph: Graph, precision: str) -> str | None:
    """Return the dtype in which a parameter's gradient is reduced, or None for the tensor's own.

    A precision of ``bfloat16/bfloat16`` reduces it in the dtype of the step.
    """
    return None if reduces_low(precision) else master_dtype(tensor, graph, precision)


def master_dtype(tensor: str, graph: Graph, precision: str) -> str | None:
    """Return the dtype of a parameter and its gradient at rest, or None for the tensor's own."""
    low = graph.producer[tensor].op == "parameter" and has_masters(precision)
    return "float32" if low else None


def has_masters(precision: str) -> bool:
    """Whether parameters are in float32 at rest, and lower in the step."""
    return precision.partition("/")[0] in ("bfloat16", "float16")


def reduces_low(precision: str) -> bool:
    """Whether gradients are reduced in the dtype of the step, lower than that of parameters at rest."""
    return has_masters(precision) and "/" in precision


def total(traffic: Iterable[Traffic]) -> Counter[tuple[int, str, str]]:
    """Return the bytes by (axis, collective, direction)."""
    sums: Counter[tuple[int, str, str]] = Counter()
    for part in traffic:
        sums[part.axis, part.collective, part.direction] += part.nbytes
    return sums
