"""The process group: every call becomes an entry of a queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from tests.strict.queues import Queue
from tests.strict.reduce import HOW, reduced
from tests.strict.transport import Transfer, Transport
from tests.strict.work import Pending, StrictError, Tensors, as_bytes, stack

BATCHED = 1 << 20
"""Tags of batched transfers begin here."""


def shapes(tensors: Tensors) -> str:
    """Dtypes and shapes."""
    return ", ".join(f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" for x in tensors)


def numbers(tensors: Tensors) -> str:
    """Dtypes and numbers of elements, which is what NCCL sees."""
    return ", ".join(f"{str(x.dtype).removeprefix('torch.')} x {x.numel()}" for x in tensors)


class Strict(dist.ProcessGroup):
    """A communicator, with one more queue per pair of ranks for unbatched transfers."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._rank, self._size = rank, size
        self._transport = Transport(store, rank, size)
        self._queue = Queue(f"rank {rank} of {size}")
        self._pairs: dict[int, Queue] = {}
        self._numbers: dict[Any, int] = {}
        self._begun = 0
        self._named, self._described = "", ""

    def getBackendName(self) -> str:
        return "strict"

    def setGroupName(self, name: str) -> None:
        self._named = name

    def getGroupName(self) -> str:
        return self._named

    def setGroupDesc(self, description: str) -> None:
        self._described = description

    def getGroupDesc(self) -> str:
        return self._described

    def _get_sequence_number_for_group(self) -> int:
        return self._begun

    def shutdown(self, *_: Any) -> None:
        """End the threads."""
        for each in (self._queue, *self._pairs.values()):
            each.stop()

    abort = shutdown

    def _issue(
        self,
        what: str,
        inputs: Tensors,
        outputs: Tensors,
        run: Callable[[list[torch.Tensor]], list[torch.Tensor]],
    ) -> Pending:
        """A collective: agreed upon by all ranks before anything moves."""
        self._begun += 1
        where = stack()

        def agreed(given: list[torch.Tensor]) -> list[torch.Tensor]:
            self._transport.agree(what, where)
            return run(given)

        return self._queue.put(Pending(what, inputs, outputs, agreed))

    # Sums.

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Pending:
        how = _reduction(opts)
        return self._issue(
            f"all_reduce {how} of {numbers(tensors)}", tensors, tensors,
            lambda given: [reduced(self._transport.gather(x), how) for x in given],
        )  # fmt: skip

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Pending:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Tensors, opts: Any = None) -> Pending:
        how, root = _reduction(opts), opts.rootRank
        outputs = tensors if self._rank == root else ()
        return self._issue(
            f"reduce {how} to {root} of {numbers(tensors)}", tensors, outputs,
            lambda given: [reduced(self._transport.gather(x), how) for x in given][: len(outputs)],
        )  # fmt: skip

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Pending:
        how = _reduction(opts)
        _fits(outputs, inputs, self._size, "reduce_scatter")
        return self._issue(
            f"reduce_scatter {how} of {numbers(inputs)}", inputs, outputs,
            lambda given: [self._scattered(x, how) for x in given],
        )  # fmt: skip

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter_single(
        self, output: torch.Tensor, x: torch.Tensor, opts: Any = None
    ) -> Pending:
        return self.reduce_scatter_single_coalesced([output], [x], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter(
        self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None
    ) -> Pending:
        how = _reduction(opts)
        (output,), (parts,) = outputs, inputs
        return self._issue(
            f"reduce_scatter {how} of {numbers(parts)}", parts, [output],
            lambda given: [
                [reduced(self._transport.gather(x), how) for x in given][self._rank]
            ],
        )  # fmt: skip

    def _scattered(self, x: torch.Tensor, how: str) -> torch.Tensor:
        whole = reduced(self._transport.gather(x.reshape(-1)), how)
        return whole.chunk(self._size)[self._rank] if whole.numel() else whole

    # Gathers.

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Pending:
        _fits(inputs, outputs, self._size, "all_gather")
        return self._issue(
            f"all_gather of {numbers(inputs)}", inputs, outputs,
            lambda given: [torch.cat(self._transport.gather(x.reshape(-1))) for x in given],
        )  # fmt: skip

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def all_gather_single(self, output: torch.Tensor, x: torch.Tensor, opts: Any = None) -> Pending:
        return self.all_gather_single_coalesced([output], [x], opts)

    _allgather_base = all_gather_single

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Pending:
        (rooms,), (mine,) = outputs, inputs
        for room in rooms:
            if room.numel() != mine.numel():
                raise StrictError(f"all_gather of {shapes([mine])} into {shapes(rooms)}")
        return self._issue(
            f"all_gather of {numbers(inputs)}", inputs, rooms,
            lambda given: self._transport.gather(given[0]),
        )  # fmt: skip

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Pending:
        rooms = outputs[0] if outputs else ()
        return self._issue(
            f"gather to {opts.rootRank} of {numbers(inputs)}", inputs, rooms,
            lambda given: self._transport.gather(given[0])[: len(rooms)],
        )  # fmt: skip

    def broadcast(self, tensors: Tensors, opts: Any = None) -> Pending:
        return self._issue(
            f"broadcast from {opts.rootRank} of {numbers(tensors)}", tensors, tensors,
            lambda given: [self._transport.gather(x)[opts.rootRank] for x in given],
        )  # fmt: skip

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Pending:
        parts = inputs[0] if inputs else [torch.zeros_like(outputs[0])] * self._size
        return self._issue(
            f"scatter from {opts.rootRank} of {numbers(outputs)}", parts, outputs,
            lambda given: [
                [self._transport.gather(x)[opts.rootRank] for x in given][self._rank]
            ],
        )  # fmt: skip

    # Exchanges.

    def all_to_all_single(
        self,
        output: torch.Tensor,
        x: torch.Tensor,
        output_sizes: Sequence[int],
        input_sizes: Sequence[int],
        opts: Any = None,
    ) -> Pending:
        """Along dim 0; empty sizes: equal parts."""
        going = _parts(x, input_sizes, self._size)
        coming = [part.numel() for part in _parts(output, output_sizes, self._size)]
        what = f"all_to_all of {str(x.dtype).removeprefix('torch.')}"

        def run(given: list[torch.Tensor]) -> list[torch.Tensor]:
            parts = given[0].reshape(-1).split([part.numel() for part in going])
            found = self._exchanged(parts, coming)
            return [torch.cat([each.view(x.dtype) for each in found])]

        return self._issue(what, [x], [output], run)

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Pending:
        coming = [each.numel() for each in outputs]

        def run(given: list[torch.Tensor]) -> list[torch.Tensor]:
            found = self._exchanged(given, coming)
            return [each.view(room.dtype) for each, room in zip(found, outputs, strict=True)]

        what = f"all_to_all of {str(inputs[0].dtype).removeprefix('torch.')}"
        return self._issue(what, inputs, outputs, run)

    def _exchanged(self, parts: Tensors, coming: Sequence[int]) -> list[torch.Tensor]:
        """Parts as bytes; what I expect of each rank is what it sends."""
        sizes = torch.tensor([part.numel() for part in parts])
        said = [int(each[self._rank]) for each in self._transport.gather(sizes)]
        if said != list(coming):
            raise StrictError(f"rank {self._rank} expects {list(coming)} elements, and {said} come")
        width = parts[0].element_size()
        return self._transport.exchange(list(map(as_bytes, parts)), [n * width for n in coming])

    def barrier(self, opts: Any = None) -> Pending:
        return self._issue("barrier", (), (), lambda _: [])

    # Transfers.

    def send(self, tensors: Tensors, peer: int, tag: int = 0) -> Pending:
        return self._transfer(tensors[0], peer, True)

    def recv(self, tensors: Tensors, peer: int, tag: int = 0) -> Pending:
        return self._transfer(tensors[0], peer, False)

    def recv_anysource(self, *_: Any) -> Pending:
        raise StrictError("NCCL cannot receive from any source: name one")

    def _transfer(self, tensor: torch.Tensor, peer: int, sends: bool) -> Pending:
        transfer = Transfer(tensor.detach(), self._rank, peer, sends, self._next(("pair", peer)))
        if peer not in self._pairs:
            self._pairs[peer] = Queue(f"rank {self._rank} with {peer} of {self._size}")
        return self._pairs[peer].put(self._moving(transfer.what, [transfer]))

    def batch(self, transfers: Sequence[tuple[torch.Tensor, int, bool]]) -> Pending:
        """Transfers (tensor, peer, whether it is sent) as one entry of the group's queue."""
        every = []
        for tensor, peer, sends in transfers:
            direction = sends == (peer > self._rank)
            number = BATCHED + 2 * self._next(("batch", peer, sends)) + direction
            every.append(Transfer(tensor.detach(), self._rank, peer, sends, number))
        what = "a batch: " + "; ".join(each.what for each in every)
        return self._queue.put(self._moving(what, every))

    def _moving(self, what: str, every: Sequence[Transfer]) -> Pending:
        where = stack()
        sent = [each.tensor for each in every if each.sends]
        got = [each.tensor for each in every if not each.sends]

        def run(given: list[torch.Tensor]) -> list[torch.Tensor]:
            self._transport.meet(every, where)
            parts = iter(given)
            return self._transport.move(
                [replace(each, tensor=next(parts)) if each.sends else each for each in every]
            )

        return Pending(what, sent, got, run)

    def _next(self, key: Any) -> int:
        self._numbers[key] = self._numbers.get(key, -1) + 1
        return self._numbers[key]


def _reduction(opts: Any) -> str:
    how = dist.ReduceOp.SUM if opts is None else opts.reduceOp
    return next(name for name in HOW if how == getattr(dist.ReduceOp, name))


def _fits(small: Tensors, large: Tensors, size: int, what: str) -> None:
    for one, many in zip(small, large, strict=True):
        if one.numel() * size != many.numel() or one.dtype != many.dtype:
            raise StrictError(f"{what} on {size} ranks: {shapes([one])} and {shapes([many])}")


def _parts(x: torch.Tensor, sizes: Sequence[int], ranks: int) -> tuple[torch.Tensor, ...]:
    if not sizes:
        if x.shape[0] % ranks:
            raise StrictError(f"all_to_all of {shapes([x])} in {ranks} equal parts")
        sizes = [x.shape[0] // ranks] * ranks
    return x.detach().split(list(sizes))


_single = dist.batch_isend_irecv


def _batched(transfers: list[dist.P2POp]) -> list[Any]:
    """`dist.batch_isend_irecv`, which asks only torch's own groups whether they take batches."""
    group = transfers[0].group or dist.group.WORLD
    if not isinstance(group, Strict):
        return _single(transfers)
    return [group.batch([(t.tensor, t.group_peer, t.op is dist.isend) for t in transfers])]


def _made(store: Store, rank: int, size: int, _: Any) -> Strict:
    return Strict(store, rank, size)


def register() -> None:
    """Make the backend known, as ``init_process_group("strict")``."""
    if "STRICT" not in dist.Backend._plugins:
        dist.Backend.register_backend("strict", _made, devices=["cpu"])
        dist.batch_isend_irecv = _batched
