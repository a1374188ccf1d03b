"""The collectives of conversions on local tensors, without gradients.

Eagerly they are called as they are.  In a graph of `torch.compile` each is one operator
(`torch.ops.autopar`), so that a block with its collectives is a single graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F

from autopar.ir.placement import S
from autopar.plans.buckets import NBYTES
from autopar.runtime import _torch
from autopar.runtime.axes import Axis
from autopar.runtime.gathers import all_gather_many
from autopar.runtime.late import Late, Pending
from autopar.runtime.named import PERMUTE, named

Tensors = Sequence[torch.Tensor]


def all_gather(xs: Tensors, shards: Sequence[S], axis: Axis) -> list[torch.Tensor]:
    """Return the wholes of which these are shards."""
    if torch.compiler.is_compiling():
        places = [shard.dim for shard in shards], [shard.of for shard in shards]
        return torch.ops.autopar.all_gather(xs, *places, axis.size, axis.group_name)  # type: ignore[no-any-return]
    return gathered(xs, shards, axis.size, axis.group)


def reduce_scatter(xs: Tensors, shards: Sequence[S], axis: Axis) -> list[torch.Tensor]:
    """Return this rank's shards of the sums over ranks."""
    if torch.compiler.is_compiling():
        places = [shard.dim for shard in shards], [shard.of for shard in shards]
        return torch.ops.autopar.reduce_scatter(xs, *places, axis.size, axis.group_name)  # type: ignore[no-any-return]
    return scattered(xs, shards, axis.size, axis.group)


def all_reduce(xs: Tensors, axis: Axis) -> list[torch.Tensor]:
    """Return the sums over ranks."""
    if torch.compiler.is_compiling():
        return torch.ops.autopar.all_reduce(xs, axis.group_name)  # type: ignore[no-any-return]
    return summed(xs, axis.group)


def all_to_all(x: torch.Tensor, source: int, target: int, axis: Axis) -> torch.Tensor:
    """Move the split from dim `source` to dim `target`."""
    if torch.compiler.is_compiling():
        made: torch.Tensor = torch.ops.autopar.all_to_all(
            x, source, target, axis.size, axis.group_name
        )
        return made
    return exchanged(x, source, target, axis.size, axis.group)


def part(x: torch.Tensor, shard: S, axis: Axis) -> torch.Tensor:
    """Return this rank's shard, in storage of its own: a view would keep all of `x` alive."""
    blocks = x.unflatten(shard.dim, (shard.of, axis.size, -1)).select(shard.dim + 1, axis.rank)
    mine: torch.Tensor = blocks.clone(memory_format=torch.contiguous_format)
    return mine.flatten(shard.dim, shard.dim + 1)


def zero_pad(x: torch.Tensor, shard: S, axis: Axis) -> torch.Tensor:
    """Return the whole with zeros in place of other ranks' shards."""
    blocks = x.unflatten(shard.dim, (shard.of, 1, -1))
    pads = [0, 0] * (blocks.dim() - shard.dim - 2) + [axis.rank, axis.size - axis.rank - 1]
    padded: torch.Tensor = F.pad(blocks, pads)
    return padded.flatten(shard.dim, shard.dim + 2)


def on_first(x: torch.Tensor, axis: Axis) -> torch.Tensor:
    """Return a copy on the first rank and zeros on others."""
    return x.clone() if axis.rank == 0 else torch.zeros_like(x)


# What is sent, eagerly and as operators.


def gathered(
    tensors: Sequence[torch.Tensor], shards: Sequence[S], size: int, group: dist.ProcessGroup
) -> list[torch.Tensor]:
    """All-gather in one collective, each result in storage of its own."""
    stacked = [tensor.new_empty((size, *tensor.shape)) for tensor in tensors]
    all_gather_many(stacked, tensors, group)
    return _unstacked(stacked, shards)


def _unstacked(stacked: Sequence[torch.Tensor], shards: Sequence[S]) -> list[torch.Tensor]:
    """Return the wholes of which `stacked` has the shards of all ranks."""
    return [
        stack.view(len(stack), *_blocks(stack.shape[1:], shard))
        .movedim(0, shard.dim + 1)
        .reshape(_whole(stack.shape[1:], shard, len(stack)))
        for stack, shard in zip(stacked, shards, strict=True)
    ]


@dataclass(frozen=True)
class Started:
    """An all-gather on its way; `finish` waits for it."""

    stacked: Sequence[torch.Tensor]
    shards: Sequence[S]
    wait: Callable[[], object]

    @classmethod
    def of(cls, tensors: Tensors, shards: Sequence[S], axis: Axis) -> Started:
        """Start to gather the wholes of which these are shards."""
        stacked = [tensor.new_empty((axis.size, *tensor.shape)) for tensor in tensors]
        return cls(stacked, shards, all_gather_many(stacked, tensors, axis.group, waits=False))

    def finish(self) -> list[torch.Tensor]:
        """Wait, and return the wholes."""
        self.wait()
        return _unstacked(self.stacked, self.shards)


def scattered(
    xs: Tensors, shards: Sequence[S], size: int, group: dist.ProcessGroup
) -> list[torch.Tensor]:
    """Reduce-scatter in one collective."""
    return _scattering(xs, shards, size, group, waits=True)[0]


def start_reduce_scatter(
    xs: Tensors, shards: Sequence[S], axis: Axis
) -> tuple[list[torch.Tensor], Pending]:
    """Start to reduce-scatter, and return the shards, which wait for it when they are read."""
    mine, pending = _scattering(xs, shards, axis.size, axis.group, waits=False)
    return [Late(made, pending) for made in mine], pending


def _scattering(
    xs: Tensors, shards: Sequence[S], size: int, group: dist.ProcessGroup, waits: bool
) -> tuple[list[torch.Tensor], Pending]:
    """Reduce-scatter in one collective, and return what waits for it.

    Small tensors are copied into one message, which costs less than many.  Large ones are copied only
    if they are not in rank order in memory.
    """
    parts = [_apart(x, shard, size) for x, shard in zip(xs, shards, strict=True)]
    shapes = [_cut(x.shape, shard, size) for x, shard in zip(xs, shards, strict=True)]
    if len(xs) == 1 or sum(x.nbytes for x in xs) > NBYTES:
        mine = [x.new_empty(shape) for x, shape in zip(xs, shapes, strict=True)]
        rows = [part.reshape(-1) for part in parts]
        return mine, Pending(_torch.reduce_scatter_many(mine, rows, group, waits), rows)
    sizes = [x.numel() // size for x in xs]
    flat = xs[0].new_empty((size, sum(sizes)))
    for place, each in zip(flat.split(sizes, 1), parts, strict=True):
        place.view(each.shape).copy_(each)
    row = flat.new_empty(flat.shape[1])
    wait = _torch.reduce_scatter_many([row], [flat], group, waits)
    pieces = zip(row.split(sizes), shapes, strict=True)
    return [piece.view(shape) for piece, shape in pieces], Pending(wait, [flat])


def summed(xs: Tensors, group: dist.ProcessGroup) -> list[torch.Tensor]:
    """All-reduce in one collective, into new tensors."""
    if len(xs) == 1:
        total = xs[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return [total]
    flat = torch.cat([x.reshape(-1) for x in xs])
    dist.all_reduce(flat, group=group)
    return [p.view(x.shape) for p, x in zip(flat.split([x.numel() for x in xs]), xs, strict=True)]


def exchanged(
    x: torch.Tensor, source: int, target: int, size: int, group: dist.ProcessGroup
) -> torch.Tensor:
    """All-to-all."""
    leaving = x.unflatten(target, (size, -1)).movedim(target, 0).contiguous()
    come = torch.empty_like(leaving)
    dist.all_to_all_single(come, leaving, group=group)
    made: torch.Tensor = come.movedim(0, source).flatten(source, source + 1).contiguous()
    return made


def start_permute(
    x: torch.Tensor, to: int, source: int, size: int, group: dist.ProcessGroup
) -> Callable[[], torch.Tensor]:
    """Start to send `x` to rank `to`, and a tensor of this shape from rank `source`; return its wait.

    Each rank of the group sends to one rank and receives from one, possibly itself.
    """
    come = x.new_empty(x.shape)
    if not x.numel():
        return lambda: come
    leaving = x.contiguous()
    of, sizes = ([x.numel() * (rank == each) for rank in range(size)] for each in (source, to))
    with named(PERMUTE):
        work = dist.all_to_all_single(
            come.view(-1), leaving.view(-1), of, sizes, group=group, async_op=True
        )

    def wait() -> torch.Tensor:
        # What is sent stays alive until then.
        _ = leaving
        work.wait()
        return come

    return wait


def _apart(x: torch.Tensor, shard: S, size: int) -> torch.Tensor:
    """View a whole as ``[ranks, *shard]``, with the shard's blocks in a dim of their own."""
    parts: torch.Tensor = x.unflatten(shard.dim, (shard.of, size, -1)).movedim(shard.dim + 1, 0)
    return parts


def _blocks(shape: Sequence[int], shard: S) -> tuple[int, ...]:
    dim = shard.dim
    return (*shape[:dim], shard.of, shape[dim] // shard.of, *shape[dim + 1 :])


def _whole(shape: Sequence[int], shard: S, size: int) -> tuple[int, ...]:
    return (*shape[: shard.dim], shape[shard.dim] * size, *shape[shard.dim + 1 :])


def _cut(shape: Sequence[int], shard: S, size: int) -> tuple[int, ...]:
    return (*shape[: shard.dim], shape[shard.dim] // size, *shape[shard.dim + 1 :])


def define(schema: str, run: Callable[..., object], shape: Callable[..., object]) -> None:
    """Define an operator with its implementation and its shape on fake tensors."""
    name = schema.partition("(")[0]
    RUNS[name] = run
    _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"autopar::{name}", shape, lib=_LIBRARY)


_LIBRARY = torch.library.Library("autopar", "FRAGMENT")
RUNS: dict[str, Callable[..., object]] = {}
"""The implementation of each operator, by name."""
_group = _torch.group_named
define(
    "all_gather(Tensor[] xs, int[] dims, int[] ofs, int size, str group) -> Tensor[]",
    lambda xs, dims, ofs, size, group: gathered(xs, [*map(S, dims, ofs)], size, _group(group)),
    lambda xs, dims, ofs, size, group: [
        x.new_empty(_whole(x.shape, S(dim, of), size))
        for x, dim, of in zip(xs, dims, ofs, strict=True)
    ],
)
define(
    "reduce_scatter(Tensor[] xs, int[] dims, int[] ofs, int size, str group) -> Tensor[]",
    lambda xs, dims, ofs, size, group: scattered(xs, [*map(S, dims, ofs)], size, _group(group)),
    lambda xs, dims, ofs, size, group: [
        x.new_empty(_cut(x.shape, S(dim, of), size))
        for x, dim, of in zip(xs, dims, ofs, strict=True)
    ],
)
define(
    "all_reduce(Tensor[] xs, str group) -> Tensor[]",
    lambda xs, group: summed(xs, _group(group)),
    lambda xs, group: [x.new_empty(x.shape) for x in xs],
)
define(
    "all_to_all(Tensor x, int source, int target, int size, str group) -> Tensor",
    lambda x, source, target, size, group: exchanged(x, source, target, size, _group(group)),
    lambda x, source, target, size, group: x.new_empty(
        _whole(_cut(x.shape, S(target), size), S(source), size)
    ),
)
