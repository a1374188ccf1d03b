"""What is to be cut into stages, as plain data: layers with options, tensors, pools of devices.

No graph, no model, no torch.  A chain or a branching graph; sizes are bytes, times seconds, both per
microbatch unless a name says otherwise.  Captured models, hand-written examples and other planners'
files all end up here.
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
"""What a file holds besides is a mistake; what is infinite where it may not be, `check` refuses."""


@dataclass(frozen=True)
class Option:
    """One way to run a layer, on `devices` devices of one pool: its tensor-parallel degree.

    `rest_nbytes` are there all the time, `kept_nbytes` once for each microbatch in flight,
    `working_nbytes` only while a layer of the stage runs (the largest one counts).  The gradients of
    `reduced_nbytes` are all-reduced once a step where the stage is replicated.  `resent` are further
    bytes per tensor (its index) that such a layer adds where that tensor crosses the stage's border.
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
        """Forward and backward of one microbatch."""
        return self.forward_s + self.input_grad_s + self.weight_grad_s

    @property
    def way(self) -> tuple[int, int]:
        """What all layers of a stage have in common: the pool and the degree."""
        return self.pool, self.devices


@dataclass(frozen=True)
class Layer:
    """A node of the graph.  Layers of one `group` share a stage; backward layers follow their group."""

    __pydantic_config__ = STRICT
    name: str
    options: tuple[Option, ...]
    group: str | None = None
    backward: bool = False


@dataclass(frozen=True)
class Tensor:
    """What `source` makes and `targets` read: a stage whose border it crosses sends or receives it once.

    `round_trips` is 2 where the gradient comes back the same way.  `seconds`, where known, is
    the measured time of one trip; otherwise the pool's link decides.
    """

    __pydantic_config__ = STRICT
    source: int
    targets: tuple[int, ...]
    nbytes: float = 0.0
    round_trips: int = 1
    seconds: float | None = None


@dataclass(frozen=True)
class Pool:
    """Equal devices.  A pool without `replicas` gives each stage to one group of devices only."""

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
    """Layers, the tensors between them, and what they may run on.

    A step has `microbatches`; None is a stream without end.  `reduce_rounds` times (d - 1) / d of a
    stage's reduced bytes pass each of its d replicas once a step.
    """

    __pydantic_config__ = STRICT
    layers: tuple[Layer, ...]
    tensors: tuple[Tensor, ...] = ()
    pools: tuple[Pool, ...] = ()
    microbatches: int | None = None
    reduce_rounds: float = 2.0

    def check(self) -> Self:
        """Raise where indices, sizes or the order of layers make no sense."""
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
        """Which layer comes before which."""
        return tuple((t.source, target) for t in self.tensors for target in t.targets)

    def keeping(self, names: Sequence[str] | None = None, most_devices: int | None = None) -> Self:
        """Without the options of other names, or of a higher degree (what ablations ask)."""
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
    """Numbers such that every edge goes up; raise and name a layer where there is a cycle."""
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
