"""Prices operators, conversion steps and collectives on a mesh and hardware, in seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from autopar.ir.conversion import Copy, Direction, Step, Traffic
from autopar.ir.graph import Tensor
from autopar.ir.mesh import Mesh
from autopar.plans.grouping import is_gather
from cost_models.collectives import axis_link, collective_seconds, lateness
from cost_models.curves import is_known
from cost_models.hardware import Device, Hardware, Link
from cost_models.measured import Times, Work
from cost_models.ops import (
    adamw_seconds,
    gradient_seconds,
    message_copy_seconds,
    messages_seconds,
    op_seconds,
    scattered_seconds,
    split_seconds,
)

Seconds = Callable[[Traffic], float]


@dataclass(frozen=True)
class Prices:
    """The cost model of one mesh of identical devices."""

    mesh: Mesh
    hardware: Hardware
    states: float = 2.0
    """Tensors of a parameter's size that the optimizer keeps: two for AdamW."""
    master_itemsize: int = 0
    """Bytes per element of parameters at rest, where that is more than in the step."""
    microbatches: int = 1
    """What is spent once a step is shared by so many: costs are those of one of them."""
    versions: int = 1
    """What forward and backward read of a parameter is kept so often, by updates made."""
    times: Times | None = None
    """Operators that were timed on this device; None: all are priced by the roofline."""
    fused: bool = False
    """Whether the optimizer updates a parameter in one kernel."""

    @cached_property
    def device(self) -> Device:
        """One device, as it is when its host is shared by as many ranks as the mesh puts on it."""
        local_ranks = min(self.mesh.world_size, self.hardware.devices_per_host)
        return self.hardware.device_shared_by(local_ranks)

    @cached_property
    def paced(self) -> Device:
        """The same as fast as a step sees it, in which every rank waits for slower ones."""
        return self.device.paced

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """What rings find along each axis when all ranks of the mesh talk at once."""
        return self._links("all_reduce")

    @cached_property
    def scattering_links(self) -> tuple[Link, ...]:
        """The same for all-to-alls."""
        return self._links("all_to_all")

    def _links(self, kind: str) -> tuple[Link, ...]:
        ranks, stride = self.mesh.world_size, self.mesh.stride
        return tuple(
            axis_link(self.hardware, stride(axis), size, kind, ranks).shared_by(ranks)
            for axis, size in enumerate(self.mesh.sizes)
        )

    def collective(self, traffic: Traffic) -> float:
        """Return the seconds of one collective."""
        kind, axis = traffic.collective, traffic.axis
        link = (self.scattering_links if kind == "all_to_all" else self.links)[axis]
        return collective_seconds(kind, traffic.nbytes, self.mesh.sizes[axis], link)

    def awaited(self, traffic: Traffic) -> float:
        """Seconds of one that compute waits for: some rank comes late to it."""
        return self.collective(traffic) + self.late(traffic.axis)

    def late(self, axis: int) -> float:
        """Seconds that a collective on this axis loses to ranks that come late.

        Collectives on several axes take turns, so that whoever is late keeps all ranks of the mesh.
        """
        if self.mesh.sizes[axis] == 1:
            return 0.0
        return self.device.late_s * lateness(self.mesh.world_size)

    def in_buckets(self, part: Traffic, size: int, seconds: Seconds) -> float:
        """One tensor's part, by its bytes, of what is spent on a bucket of so many bytes."""
        return seconds(replace(part, nbytes=size)) * part.nbytes / size

    def work(self, work: Work) -> float:
        """The same, of what a pass of an operator does."""
        return _seconds_of(work, self.paced)

    def own(self, work: Work) -> float:
        """The same without waiting for slower ranks, as operators are timed."""
        return _seconds_of(work, self.device)

    def split(self, products: int) -> float:
        """Seconds for which so many products put their weights' gradients off."""
        return split_seconds(products, self.paced)

    def messages(self, count: int) -> float:
        """Seconds that one rank spends on so many sends to other stages, or receives from them."""
        return messages_seconds(count, self.paced)

    def hidden_share(self, axis: int) -> float:
        """Of the gradients' reduction on this axis beside as much compute, the share that costs nothing.

        The rest is what they take from each other: a CPU's cores, a GPU's memory bandwidth.
        """
        own = self.links[axis].overlap
        return self.device.overlap if own is None else own

    @cached_property
    def covering_share(self) -> float:
        """Of the backward, the share under which reductions hide at most: the largest axis' own."""
        axes = [axis for axis, size in enumerate(self.mesh.sizes) if size > 1]
        return max(map(self.hidden_share, axes), default=self.device.overlap)

    def at_rest(self, nbytes: float, tensor: Tensor) -> float:
        """Bytes that are so many in the step, at the precision in which the parameter rests."""
        return nbytes * max(1.0, self.master_itemsize / tensor.itemsize)

    def update(self, nbytes: float) -> float:
        """Seconds in which the optimizer updates one parameter of so many bytes at rest."""
        return adamw_seconds(nbytes, self.paced, self.fused)

    def summed(self, nbytes: float, dtype: str = "float32") -> float:
        """Seconds in which one gradient is added to another: of earlier microbatches, or readers."""
        return op_seconds(0.0, 3.0 * nbytes, dtype, self.paced, "add")

    def gradient(self, sums: Sequence[Traffic]) -> float:
        """Seconds in which a weight's gradient is laid in its bucket, where all of its sums are done."""
        if not sums:
            return 0.0
        return gradient_seconds(max(part.nbytes for part in sums), self.paced)

    def gradients(self, part: Traffic, count: int) -> float:
        """Seconds in which so many weights' gradients are laid in a message that sums them at their use.

        Those that are scattered are copied one by one, others joined.
        """
        if is_whole(part):
            return gradient_seconds(part.nbytes, self.paced)
        return scattered_seconds(part.nbytes, self.paced, count)

    def step(self, step: Step, tensor: Tensor) -> float:
        """Seconds of a conversion step, forward and backward: its collectives and its copies."""
        mesh = self.mesh
        if mesh.sizes[step.axis] == 1:
            return 0.0
        traffic = step.traffic(tensor.shape, tensor.itemsize, mesh, tensor.differentiable)
        laid = sum(map(self.copied, traffic))
        return self._copies(step, tensor) + laid + sum(map(self.awaited, traffic))

    def weight_step(self, step: Step, tensor: Tensor, together: float) -> float:
        """`step` of a weight at its use, where so many weights of its block travel together.

        Steps other than gathers are paid alone: through P, or I and R, each small weight would have an
        all-reduce beside the scatter of those that take one step.  So is a gather of what went through
        P before, as others do not wait for it.
        """
        mesh = self.mesh
        if mesh.sizes[step.axis] == 1:
            return 0.0
        if step.of_part or not is_gather(step.source[step.axis], step.target[step.axis]):
            together = 1.0
        parts = tuple(self.reduced(step, tensor))
        laid = sum(self._laid_at_use(part, together) for part in parts)
        sent = sum(self.shared(part, together, self.awaited) for part in parts)
        return self._copies(step, tensor) + laid + sent

    def _laid_at_use(self, part: Traffic, together: float) -> float:
        """One weight's part of what its message costs to lay out, or take apart."""
        if is_sum(part):
            return self.gradients(part, 1)
        return self.shared(part, together, self.copied)

    def reduced(self, step: Step, tensor: Tensor) -> Iterator[Traffic]:
        """The collectives of a parameter's step; gradients are summed in the master's precision."""
        traffic = step.traffic(tensor.shape, tensor.itemsize, self.mesh, tensor.differentiable)
        return widened(traffic, max(1, self.master_itemsize // tensor.itemsize))

    def forward(self, step: Step, tensor: Tensor) -> float:
        """Seconds of the forward half of a conversion, which a recomputation repeats."""
        traffic = step.traffic(tensor.shape, tensor.itemsize, self.mesh, tensor.differentiable)
        sent = [part for part in traffic if part.direction == "forward"]
        local_s = self._copies(step, tensor, ("forward",))
        return local_s + sum(self.awaited(part) + self.copied(part) for part in sent)

    def again(self, step: Step, tensor: Tensor, together: float) -> float:
        """Seconds more if a weight's gather is repeated in the backward instead of being kept."""
        again = regathered(step, tensor, self.mesh)
        together = 1.0 if step.of_part else together
        seconds = (self.awaited, self.copied)
        return sum(self.shared(part, together, each) for part in again for each in seconds)

    def shared(self, part: Traffic, together: float, seconds: Seconds) -> float:
        """One weight's part, by its bytes, of a collective for `together` times as many."""
        return seconds(replace(part, nbytes=round(part.nbytes * together))) / together

    def copied(self, part: Traffic) -> float:
        """Seconds in which a message is laid out for its collective, or taken apart after it.

        An all-reduce leaves everything in its place.
        """
        if is_whole(part):
            return 0.0
        return message_copy_seconds(part.nbytes, self.paced)

    def local(self, copy: Copy) -> float:
        """Seconds in which a step cuts, or fills with zeros, where it sends nothing."""
        return message_copy_seconds(copy.nbytes, self.paced)

    def _copies(
        self, step: Step, tensor: Tensor, of: tuple[Direction, ...] = ("forward", "backward")
    ) -> float:
        made = step.copies(tensor.shape, tensor.itemsize, self.mesh, tensor.differentiable)
        return sum(self.local(copy) for copy in made if copy.direction in of)


def _seconds_of(work: Work, device: Device) -> float:
    own = op_seconds(work.flops, work.nbytes, work.dtype, device, work.op, work.direction)
    if work.calls == 1 or is_known(device.curves, work.op):
        return own
    between = op_seconds(0.0, work.between, work.dtype, device)
    return own + between + (work.calls - 2) * device.launch_s


def is_sum(part: Traffic) -> bool:
    """Return whether the collective sums gradients over ranks."""
    return part.direction == "backward" and part.collective in ("all_reduce", "reduce_scatter")


def widened(parts: Iterable[Traffic], times: int) -> Iterator[Traffic]:
    """Yield the traffic with gradient sums in a dtype `times` as wide."""
    return (replace(part, nbytes=part.nbytes * times) if is_sum(part) else part for part in parts)


def is_whole(part: Traffic) -> bool:
    """Whether what comes of it lies where that lay which went into it."""
    return part.collective == "all_reduce"


def regathered(step: Step, tensor: Tensor, mesh: Mesh) -> tuple[Traffic, ...]:
    """The collectives that regathering adds: the forward gathers again, in the backward."""
    return tuple(
        Traffic(part.axis, part.collective, "backward", part.nbytes)
        for part in step.traffic(tensor.shape, tensor.itemsize, mesh, tensor.differentiable)
        if part.collective == "all_gather" and part.direction == "forward"
    )
