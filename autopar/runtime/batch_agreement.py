"""Every step the ranks compare their batches, before a collective could hang on other shapes.

One small all-gather over gloo carries three numbers per rank: of keys, shapes and constants; of values;
and which part of the batch the rank passes.  All ranks must agree on the first, ranks of the same part
on the second.  Of values, `SAMPLED` elements of each tensor count, and all in the first step; those of
tensors on a GPU, which have to be waited for, in every `SELDOM`-th step.
"""

from __future__ import annotations

import hashlib

import torch
import torch.distributed as dist

from autopar.errors import RankMismatchError
from autopar.request.batch import Batch
from autopar.runtime import agreement
from autopar.runtime.counting import BATCHES
from autopar.runtime.gradient_groups import of_all_ranks
from autopar.runtime.named import CHECKS, named

SAMPLED = 4096
"""Elements of a tensor that are compared in every step."""
SELDOM = 50
"""Steps between two looks at tensors on a GPU."""
LOCAL = (
    "With input='local' every rank passes a part of the same size (DistributedSampler, or "
    "DataLoader(drop_last=True)); pad or drop what is left over."
)
SAME_PART = (
    "Ranks with the same data_rank pass the same part of the batch: sample by "
    "parallel.data_replicas and parallel.data_rank, and seed what shuffles alike."
)


class BatchAgreement:
    """`part`: which part of the batch this rank passes; it is 0 where all pass the whole."""

    def __init__(self) -> None:
        self._steps = 0
        # Of its own, on the host: collectives of the step keep their order, and no GPU is waited for.
        self._group = of_all_ranks(BATCHES) if dist.get_world_size() > 1 else None

    def check(self, batch: Batch, part: int, *, local: bool) -> None:
        """Raise `RankMismatchError`, on all ranks, where their batches do not belong together."""
        if self._group is None:
            return
        first = self._steps == 0
        kinds = _number(repr(batch.signature))
        values = _number(batch.digest if first else _sample(batch, self._steps % SELDOM == 0))
        self._steps += 1
        mine = torch.tensor([kinds, values, part], dtype=torch.int64, device="cpu")
        found = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        with named(CHECKS):
            dist.all_gather(found, mine, group=self._group)
        rows = torch.stack(found).tolist()
        step = "the first step" if first else f"step {self._steps}"
        if len({row[0] for row in rows}) > 1:
            words = f"the shapes of the batch of {step}" if local else f"the batch of {step}"
            remedy = LOCAL if local else agreement.SAME_BATCH
            agreement.assert_same_on_all_ranks(words, _in_words(batch), remedy)
        if len({(row[2], row[1]) for row in rows}) > len({row[2] for row in rows}):
            odd = [rank for rank, row in enumerate(rows) if row[1] != _first(rows, row[2])]
            remedy = SAME_PART if local else agreement.SAME_BATCH
            raise RankMismatchError(
                f"Ranks disagree about the batch of {step}: rank {', '.join(map(str, odd))} passed "
                f"other values than the first rank of the same part ({batch}). {remedy}"
            )


def _first(rows: list[list[int]], part: int) -> int:
    return next(row[1] for row in rows if row[2] == part)


def _in_words(batch: Batch) -> str:
    constants = ", ".join(f"{key}={text}" for key, text in batch.constants)
    return ", ".join(filter(None, [str(batch), constants]))


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)


def _sample(batch: Batch, on_gpu: bool) -> str:
    """Of some elements of every tensor, evenly spaced."""
    parts = hashlib.sha256()
    for _, tensor in sorted(batch.tensors.items()):
        if tensor.is_meta or not (tensor.is_cpu or on_gpu):
            continue
        flat = tensor.detach().reshape(-1)
        some = flat[:: max(1, -(-flat.numel() // SAMPLED))]
        parts.update(some.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return parts.hexdigest()
