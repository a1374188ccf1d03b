"""Prices operators, conversion steps, collectives and updates on a mesh and hardware, in seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from autopar.ir.conversion import Copy, Direction, Step, Traffic
from autopar.ir.graph import Tensor
from autopar.ir.mesh import Mesh
from autopar.plans.grouping import is_gather
from autopar.request.compression import Compression
from autopar.request.optimizers import Reads
from cost_models.collectives import axis_link, collective_seconds, lateness
from cost_models.curves import is_known
from cost_models.exchanges import EXCHANGES
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
    """Tensors of a parameter's size in the optimizer state: two for AdamW."""
    master_itemsize: int = 0
    """Bytes per element of parameters at rest, if more than in the step."""
    microbatches: int = 1
    """Microbatches per step; costs that arise once per step are divided among them."""
    versions: int = 1
    """Versions of each parameter in the step that are kept, as in pipelines with weight stashing."""
    times: Times | None = None
    """Measured operator times of this device; None: all operators are priced by the roofline."""
    fused: bool = False
    """Whether the optimizer updates a parameter in one kernel."""
    regathers: bool = False
    """Whether the backward repeats all-gathers of activations."""
    whole_states: float = 0.0
    """Bytes of optimizer states of other shapes, relative to the parameter's; every rank holds all."""
    reads: Reads = "shards"
    """The tensors that the optimizer's update of a parameter needs whole."""
    compression: Compression | None = None
    """How gradients travel compressed."""
    reduces_low: bool = False
    """Whether gradients are reduced in the step's precision, not in that of parameters at rest."""

    @cached_property
    def device(self) -> Device:
        """One device whose host is shared by all ranks that the mesh places on it."""
        local_ranks = min(self.mesh.world_size, self.hardware.devices_per_host)
        return self.hardware.device_shared_by(local_ranks)

    @cached_property
    def paced(self) -> Device:
        """The device at the pace of a step, in which every rank waits for slower ones."""
        return self.device.paced

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """The link of each axis for rings, with all ranks of the mesh communicating at once."""
        return self._links("all_reduce")

    @cached_property
    def scattering_links(self) -> tuple[Link, ...]:
        """The link of each axis for all-to-alls."""
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
        link = self.link(kind, axis)
        return collective_seconds(kind, traffic.nbytes, self.mesh.sizes[axis], link)

    def link(self, kind: str, axis: int) -> Link:
        """Return the link of an axis for this kind of exchange."""
        return (self.scattering_links if EXCHANGES[kind].scatters else self.links)[axis]

    def awaited(self, traffic: Traffic) -> float:
        """Return the seconds of a collective that compute waits for, with the wait for late ranks.

        It takes at least the host's time to issue it.
        """
        return max(self.collective(traffic), self.paced.issue_s) + self.late(traffic.axis)

    def late(self, axis: int) -> float:
        """Return the seconds that a collective on this axis waits for late ranks.

        Collectives on several axes alternate, so that one late rank delays all ranks of the mesh.
        """
        if self.mesh.sizes[axis] == 1:
            return 0.0
        return self.device.late_s * lateness(self.mesh.world_size)

    def in_buckets(self, part: Traffic, size: int, seconds: Seconds) -> float:
        """Return one tensor's share, by bytes, of the cost of a bucket of `size` bytes."""
        if not part.nbytes:
            return 0.0
        travels = round(size * part.nbytes / part.bucket_nbytes)
        return seconds(replace(part, nbytes=travels)) * part.bucket_nbytes / size

    def work(self, work: Work) -> float:
        """Return the seconds of one pass of an operator, including the wait for slower ranks."""
        return _seconds_of(work, self.paced)

    def own(self, work: Work) -> float:
        """Return the seconds of one pass without waiting for slower ranks, as measured times are."""
        return _seconds_of(work, self.device)

    def split(self, products: int) -> float:
        """Return the overhead in seconds of deferring the weight gradients of `products` products."""
        return split_seconds(products, self.paced)

    def messages(self, count: int) -> float:
        """Return a rank's own seconds for `count` sends to other stages, or receives from them."""
        return messages_seconds(count, self.paced)

    def hidden_share(self, axis: int) -> float:
        """Return the share of a gradient reduction on this axis that equally long compute hides.

        The rest is lost to contention: for a CPU's cores, or a GPU's memory bandwidth.
        """
        own = self.links[axis].overlap
        return self.device.overlap if own is None else own

    @cached_property
    def covering_share(self) -> float:
        """The largest share of the backward that can hide reductions: the maximum over the axes."""
        axes = [axis for axis, size in enumerate(self.mesh.sizes) if size > 1]
        return max(map(self.hidden_share, axes), default=self.device.overlap)

    def at_rest(self, nbytes: float, tensor: Tensor) -> float:
        """Convert bytes in the step to bytes at the precision of the parameter at rest."""
        return nbytes * max(1.0, self.master_itemsize / tensor.itemsize)

    @property
    def reduced_itemsize(self) -> int:
        """Bytes per element of gradients while they are reduced, if more than in the step."""
        return 0 if self.reduces_low else self.master_itemsize

    def in_bucket(self, nbytes: float, tensor: Tensor) -> float:
        """Convert bytes in the step to bytes at the precision of the gradient's reduction."""
        return nbytes * max(1.0, self.reduced_itemsize / tensor.itemsize)

    def update(self, nbytes: float) -> float:
        """Return the seconds of the optimizer's update of one parameter of `nbytes` at rest."""
        return adamw_seconds(nbytes, self.paced, self.fused)

    def compressing(self, flops: float, nbytes: float) -> float:
        """Return the seconds to compress a gradient and to restore it: its work and bytes moved."""
        return op_seconds(flops, nbytes, "float32", self.paced)

    def summed(self, nbytes: float, dtype: str = "float32") -> float:
        """Return the seconds to add a gradient to that of earlier microbatches, or of other readers."""
        return op_seconds(0.0, 3.0 * nbytes, dtype, self.paced, "add")

    def gradient(self, sums: Sequence[Traffic]) -> float:
        """Return the seconds to copy a weight's gradient into its bucket for its reductions `sums`."""
        if not sums or not self.device.lays_out:
            return 0.0
        return gradient_seconds(max(part.bucket_nbytes for part in sums), self.paced)

    def gradients(self, part: Traffic, count: int) -> float:
        """Return the seconds to copy `count` weights' gradients into a message reduced at their use.

        For a reduce-scatter they are copied one by one, for an all-reduce in one concatenation.
        """
        if not self.device.lays_out:
            return 0.0
        if is_whole(part):
            return gradient_seconds(part.nbytes, self.paced)
        return scattered_seconds(part.nbytes, self.paced, count)

    def step(self, step: Step, tensor: Tensor) -> float:
        """Return the seconds of a conversion step, forward and backward: collectives and copies."""
        mesh = self.mesh
        if mesh.sizes[step.axis] == 1:
            return 0.0
        traffic = step.traffic(tensor.shape, tensor.itemsize, mesh, tensor.differentiable)
        laid = sum(map(self.copied, traffic))
        again = self.again(step, tensor, 1.0) if self.regathers and tensor.differentiable else 0.0
        return self._copies(step, tensor) + laid + sum(map(self.awaited, traffic)) + again

    def weight_step(self, step: Step, tensor: Tensor, together: float) -> float:
        """Return the cost of `step` for a weight at its use, as its share of a block's collective.

        `together` is the size of all weights in the collective, relative to this one.  Steps other
        than gathers are priced alone: through P, or I and R, each small weight would have an all-reduce
        besides the reduce-scatter of those that take one step.  So is a gather of a partial sum, as the
        other weights do not wait for it.
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
        """Return one weight's share of packing or unpacking its message."""
        if is_sum(part):
            return self.gradients(part, 1)
        return self.shared(part, together, self.copied)

    def reduced(self, step: Step, tensor: Tensor) -> Iterator[Traffic]:
        """Yield the collectives of a parameter's step, with gradients in the reduction's precision."""
        traffic = step.traffic(tensor.shape, tensor.itemsize, self.mesh, tensor.differentiable)
        return widened(traffic, max(1, self.reduced_itemsize // tensor.itemsize))

    def forward(self, step: Step, tensor: Tensor) -> float:
        """Return the seconds of a conversion's forward, which a recomputation repeats."""
        traffic = step.traffic(tensor.shape, tensor.itemsize, self.mesh, tensor.differentiable)
        sent = [part for part in traffic if part.direction == "forward"]
        local_s = self._copies(step, tensor, ("forward",))
        return local_s + sum(self.awaited(part) + self.copied(part) for part in sent)

    def again(self, step: Step, tensor: Tensor, together: float) -> float:
        """Return the extra seconds if a weight is gathered again in the backward instead of kept."""
        again = regathered(step, tensor, self.mesh)
        together = 1.0 if step.of_part else together
        seconds = (self.awaited, self.copied)
        return sum(self.shared(part, together, each) for part in again for each in seconds)

    def shared(self, part: Traffic, together: float, seconds: Seconds) -> float:
        """Return one weight's share, by bytes, of a collective of `together` times its bytes."""
        return seconds(replace(part, nbytes=round(part.nbytes * together))) / together

    def copied(self, part: Traffic) -> float:
        """Return the seconds to pack a message before its collective, or to unpack it afterwards.

        Zero for an all-reduce, which is in place, and for software whose tensors have the layout of the
        message (`Device.lays_out`).
        """
        if is_whole(part) or not self.device.lays_out:
            return 0.0
        return message_copy_seconds(part.nbytes, self.paced)

    def local(self, copy: Copy) -> float:
        """Return the seconds of a local copy of a step: a slice, or a zero fill."""
        if not self.device.lays_out:
            return 0.0
        return message_copy_seconds(copy.nbytes, self.paced)

    def _copies(
        self, step: Step, tensor: Tensor, of: tuple[Direction, ...] = ("forward", "backward")
    ) -> float:
        made = step.copies(tensor.shape, tensor.itemsize, self.mesh, tensor.differentiable)
        return sum(self.local(copy) for copy in made if copy.direction in of)


def _seconds_of(work: Work, device: Device) -> float:
    own = op_seconds(
        work.flops, work.nbytes, work.dtype, device, work.op, work.direction, work.dims
    )
    if work.calls == 1 or is_known(device.curves, work.op):
        return own
    between = op_seconds(0.0, work.between, work.dtype, device)
    return own + between + (work.calls - 2) * max(device.launch_s, device.issue_s)


def is_sum(part: Traffic) -> bool:
    """Return whether the collective sums gradients over ranks, or carries compressed ones for that."""
    sums = EXCHANGES[part.collective].sums or part.carried_nbytes > 0
    return part.direction == "backward" and sums


def widened(parts: Iterable[Traffic], times: int) -> Iterator[Traffic]:
    """Yield the traffic with gradient sums in a dtype `times` as wide."""
    return (replace(part, nbytes=part.nbytes * times) if is_sum(part) else part for part in parts)


def is_whole(part: Traffic) -> bool:
    """Return whether the collective's output has the layout of its input (an all-reduce)."""
    return EXCHANGES[part.collective].whole


def regathered(step: Step, tensor: Tensor, mesh: Mesh) -> tuple[Traffic, ...]:
    """Return the collectives that regathering adds: the forward's of a gather, in the backward."""
    if not is_gather(step.source[step.axis], step.target[step.axis]):
        return ()
    return tuple(
        replace(part, direction="backward")
        for part in step.traffic(tensor.shape, tensor.itemsize, mesh, tensor.differentiable)
        if part.direction == "forward"
    )
