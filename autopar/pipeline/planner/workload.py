"""The input of the throughput planner as plain data: layers with options, tensors, device pools.

It refers to no captured graph, model or torch object.  Hand-written examples and other planners' files
are converted to it; captured models are planned from a `StageProblem` (`table.py`) instead.  Layers form
a chain or a branching graph.  Sizes are bytes and times are seconds, both per microbatch unless a name
says otherwise.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from pydantic import ConfigDict

from autopar.errors import PlanError

STRICT = ConfigDict(extra="forbid", allow_inf_nan=True)
"""Unknown keys in a file are errors.  Infinity is parsed; `check` rejects it where it is invalid."""


@dataclass(frozen=True)
class Option:
    """One way to run a layer on `devices` devices of one pool; `devices` is the tensor-parallel degree.

    `rest_nbytes` are allocated permanently, `kept_nbytes` once per microbatch in flight, and
    `working_nbytes` only while a layer of the stage runs (the maximum over the layers counts).  If the
    stage is replicated, gradients of `reduced_nbytes` are all-reduced once per step.  `resent` has
    pairs (tensor index, bytes): additional bytes that the layer transfers if that tensor crosses the
    border of the stage.
    """

    __pydantic_config__ = STRICT
    name: str = ""
    pool: int = 0
    devices: int = 1
    forward_s: float = 0.0
    input_grad_s: float = 0.0
    weight_grad_s: float = 0.0
    rest_nbytes: float = 0.0
    kept_nbytes: float = 0.0
    working_nbytes: float = 0.0
    reduced_nbytes: float = 0.0
    resent: tuple[tuple[int, float], ...] = ()

    @property
    def seconds(self) -> float:
        """Seconds of forward and backward of one microbatch."""
        return self.forward_s + self.input_grad_s + self.weight_grad_s

    @property
    def way(self) -> tuple[int, int]:
        """The pool and the degree, which all layers of a stage share."""
        return self.pool, self.devices


@dataclass(frozen=True)
class Layer:
    """A node of the graph.  Layers of one `group` share a stage, backward layers included."""

    __pydantic_config__ = STRICT
    name: str
    options: tuple[Option, ...]
    group: str | None = None
    backward: bool = False


@dataclass(frozen=True)
class Tensor:
    """The output of `source` that `targets` read; a stage whose border it crosses transfers it once.

    `round_trips` is 2 if its gradient returns the same way.  `seconds` is the measured time of one
    transfer; None: it is computed from the pool's bandwidth and latency.
    """

    __pydantic_config__ = STRICT
    source: int
    targets: tuple[int, ...]
    nbytes: float = 0.0
    round_trips: int = 1
    seconds: float | None = None


@dataclass(frozen=True)
class Pool:
    """A pool of equal devices.  If `replicas` is False, its stages are not replicated."""

    __pydantic_config__ = STRICT
    name: str
    count: int
    memory_nbytes: float = math.inf
    bytes_per_s: float = math.inf
    latency_s: float = 0.0
    pays_transfers: bool = True
    replicas: bool = True


@dataclass(frozen=True)
class Workload:
    """Layers, the tensors between them, and the pools on which they can run.

    `microbatches` is their number per step; None: an endless stream.  In each step, each of the d
    replicas of a stage transfers `reduce_rounds` (d - 1) / d times the stage's reduced bytes.
    """

    __pydantic_config__ = STRICT
    layers: tuple[Layer, ...]
    tensors: tuple[Tensor, ...] = ()
    pools: tuple[Pool, ...] = ()
    microbatches: int | None = None
    reduce_rounds: float = 2.0

    def check(self) -> Self:
        """Return the workload; raise `PlanError` if indices, sizes or the order of layers are wrong."""
        if not self.layers or not self.pools:
            raise PlanError("a workload needs at least one layer and one pool")
        if self.microbatches is not None and self.microbatches < 1:
            raise PlanError(f"a step of {self.microbatches} microbatches; it has at least one")
        twice = [name for name, times in Counter(l.name for l in self.layers).items() if times > 1]
        if twice:
            raise PlanError(f"two layers are called {twice[0]!r}; give each a name of its own")
        for layer in self.layers:
            self._check_layer(layer)
        for index, tensor in enumerate(self.tensors):
            self._check_tensor(index, tensor)
        for pool in self.pools:
            sizes = (pool.memory_nbytes, pool.bytes_per_s)
            if pool.count < 0 or not all(size > 0 for size in sizes) or pool.latency_s < 0:
                raise PlanError(f"pool {pool.name!r} has a negative count, size or latency")
        topological_order(len(self.layers), self.edges, [layer.name for layer in self.layers])
        return self

    def _check_layer(self, layer: Layer) -> None:
        if not layer.options:
            raise PlanError(f"layer {layer.name!r} has no option to run; give it at least one")
        resent: dict[tuple[int, int], tuple[tuple[int, float], ...]] = {}
        for option in layer.options:
            where = f"option {option.name!r} of layer {layer.name!r}"
            if not 0 <= option.pool < len(self.pools) or option.devices < 1:
                raise PlanError(f"{where} names pool {option.pool} x {option.devices} devices")
            figures = (
                option.forward_s, option.input_grad_s, option.weight_grad_s, option.rest_nbytes,
                option.kept_nbytes, option.working_nbytes, option.reduced_nbytes,
                *(nbytes for _, nbytes in option.resent),
            )  # fmt: skip
            if not all(0 <= figure < math.inf for figure in figures):
                raise PlanError(f"{where} has a negative or infinite figure: {figures}")
            for index, _ in option.resent:
                if not 0 <= index < len(self.tensors):
                    raise PlanError(f"{where} resends tensor {index}, which does not exist")
            if resent.setdefault(option.way, option.resent) != option.resent:
                raise PlanError(
                    f"{where} resends other bytes than its siblings on {option.devices} devices: "
                    "what crosses a border may depend on pool and degree only"
                )

    def _check_tensor(self, index: int, tensor: Tensor) -> None:
        inside = all(0 <= at < len(self.layers) for at in (tensor.source, *tensor.targets))
        if not inside or not tensor.targets or tensor.source in tensor.targets:
            raise PlanError(f"tensor {index} joins {tensor.source} to {tensor.targets}")
        if not 0 <= tensor.nbytes < math.inf or tensor.round_trips < 0:
            raise PlanError(f"tensor {index} has {tensor.nbytes} bytes, {tensor.round_trips} trips")
        if tensor.seconds is not None and not 0 <= tensor.seconds < math.inf:
            raise PlanError(f"tensor {index} takes {tensor.seconds} s; seconds are at least 0")

    @property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Pairs of layers (source, target), one for each reader of each tensor."""
        return tuple((t.source, target) for t in self.tensors for target in t.targets)

    def replicas_of(self, way: tuple[int, int]) -> list[int]:
        """Return the numbers of replicas of a way that its pool and the microbatches permit."""
        pool = self.pools[way[0]]
        most = pool.count // way[1] if pool.replicas else min(1, pool.count // way[1])
        steps = self.microbatches
        return [d for d in range(1, most + 1) if steps is None or steps % d == 0]

    def reduce_share(self, pool: int, replicas: int) -> float:
        """Return the seconds per microbatch that each reduced byte of a stage takes on its replicas."""
        if replicas == 1 or self.microbatches is None:
            return 0.0
        speed = self.pools[pool].bytes_per_s * self.microbatches
        return self.reduce_rounds * (replicas - 1) / replicas / speed

    def keeping(self, names: Sequence[str] | None = None, most_devices: int | None = None) -> Self:
        """Return the workload with only options of these names, up to this degree (for ablations)."""
        layers = tuple(
            replace(
                layer,
                options=tuple(
                    option
                    for option in layer.options
                    if (names is None or option.name in names)
                    and (most_devices is None or option.devices <= most_devices)
                ),
            )
            for layer in self.layers
        )
        return replace(self, layers=layers).check()


def topological_order(
    count: int, edges: Sequence[tuple[int, int]], names: Sequence[str]
) -> list[int]:
    """Return the nodes in topological order; raise `PlanError` with a layer's name on a cycle."""
    after: list[list[int]] = [[] for _ in range(count)]
    waits = [0] * count
    for source, target in edges:
        after[source].append(target)
        waits[target] += 1
    ready = [node for node in range(count) if not waits[node]]
    order = []
    for node in ready:
        order.append(node)
        for target in after[node]:
            waits[target] -= 1
            if not waits[target]:
                ready.append(target)
    if len(order) < count:
        stuck = next(node for node in range(count) if waits[node])
        raise PlanError(f"layer {names[stuck]!r} waits for itself: the graph has a cycle")
    return order
