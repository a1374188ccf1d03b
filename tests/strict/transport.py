"""Moves bytes between ranks with gloo, and compares what both sides say that they do."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import ProcessGroupGloo

from tests.strict.work import StrictError, as_bytes

WORDS = 2048
"""Bytes of a description: what is done, and where it was issued."""


def limit() -> timedelta:
    """How long an operation may take."""
    return timedelta(seconds=float(os.environ.get("AUTOPAR_STRICT_S", "30")))


@dataclass(frozen=True, eq=False)
class Transfer:
    """One side of a transfer; `number` is equal on both sides."""

    tensor: torch.Tensor
    rank: int
    peer: int
    sends: bool
    number: int

    @property
    def what(self) -> str:
        """What this side does."""
        return self._side(self.rank, self.peer, self.sends)

    @property
    def expected(self) -> str:
        """What the other side has to do."""
        return self._side(self.peer, self.rank, not self.sends)

    def _side(self, rank: int, peer: int, sends: bool) -> str:
        what = f"{str(self.tensor.dtype).removeprefix('torch.')} x {self.tensor.numel()}"
        return (
            f"rank {rank} sends {what} to {peer}"
            if sends
            else f"rank {rank} receives {what} from {peer}"
        )


class Transport:
    """Collectives and transfers of bytes among the ranks of one group."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._all = ProcessGroupGloo(PrefixStore("all", store), rank, size, limit())
        self._pairs = ProcessGroupGloo(PrefixStore("pairs", store), rank, size, limit())

    def agree(self, what: str, stack: str) -> None:
        """Wait for all ranks; raise `StrictError` if one does something else."""
        said = self.gather(_words(f"{what}\n{stack}"))
        texts = [_text(each) for each in said]
        for rank, text in enumerate(texts):
            if text.partition("\n")[0] != what:
                raise StrictError(_differ(self.rank, f"{what}\n{stack}", rank, text))

    def gather(self, mine: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's tensor of this shape."""
        flat = as_bytes(mine)
        found = [torch.empty_like(flat) for _ in range(self.size)]
        if flat.numel():
            self._all.allgather([found], [flat]).wait()
        return [each.view(mine.dtype).view(mine.shape) for each in found]

    def exchange(self, parts: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
        """All-to-all of bytes: part i to rank i; from rank i so many bytes."""
        found = [torch.empty(size, dtype=torch.uint8) for size in sizes]
        sent, got = (
            torch.cat([*parts, torch.zeros(0, dtype=torch.uint8)]),
            torch.empty(sum(sizes), dtype=torch.uint8),
        )
        self._all.alltoall_base(got, sent, list(sizes), [p.numel() for p in parts]).wait()
        for mine, theirs in zip(found, got.split(list(sizes)), strict=True):
            mine.copy_(theirs)
        return found

    def meet(self, transfers: Sequence[Transfer], stack: str) -> None:
        """Wait for the other sides; raise `StrictError` unless each does what is expected."""
        under_way = []
        for each in transfers:
            mine, other = _words(f"{each.what}\n{stack}"), torch.empty(WORDS, dtype=torch.uint8)
            sent = self._pairs.send([mine], each.peer, 2 * each.number)
            under_way.append(
                (each, mine, other, sent, self._pairs.recv([other], each.peer, 2 * each.number))
            )
        for each, mine, other, sent, got in under_way:
            got.wait()
            sent.wait()
            if _text(other).partition("\n")[0] != each.expected:
                raise StrictError(_differ(self.rank, _text(mine), each.peer, _text(other)))

    def move(self, transfers: Sequence[Transfer]) -> list[torch.Tensor]:
        """Send and receive at once; what came, in the order of the transfers that receive."""
        found, under_way = [], []
        for each in transfers:
            flat = as_bytes(each.tensor if each.sends else torch.empty_like(each.tensor))
            if flat.numel():
                step = self._pairs.send if each.sends else self._pairs.recv
                under_way.append(step([flat], each.peer, 2 * each.number + 1))
            if not each.sends:
                found.append(flat.view(each.tensor.dtype).view(each.tensor.shape))
        for work in under_way:
            work.wait()
        return found


def _words(text: str) -> torch.Tensor:
    data = text.encode()[:WORDS].ljust(WORDS, b"\0")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _text(words: torch.Tensor) -> str:
    return bytes(words.tolist()).rstrip(b"\0").decode(errors="replace")


def _differ(rank: int, mine: str, other: int, theirs: str) -> str:
    return f"rank {rank} does\n  {mine}\nand rank {other} does\n  {theirs}"
