"""Compares the ranks' batches in every step, before a collective could hang on different shapes.

One small all-gather over gloo carries eight numbers per rank: a hash of keys, shapes and constants; a
hash of values; the index of the part of the batch that the rank passes; a hash of the modules' modes;
a hash of the values that the model reads outside; whether the rank refuses the step; its worker; and a
hash of what its loop did since the last step.  Ranks of the same part must agree on the second, and
ranks of the same worker on the last; all ranks must agree on the first, the fourth and, unless their
graphs are the same, the fifth.  The hash of values covers all elements in the first step, and
`sample.SAMPLED` elements of each tensor later.  Tensors on a GPU, which would have to be waited for, are
then included in every `SELDOM`-th step only.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist

from autopar.errors import AutoparError, RankMismatchError
from autopar.request.batch import Batch
from autopar.request.model_state import ModelState, Outside
from autopar.runtime import agreement, loop_record
from autopar.runtime.counting import BATCHES
from autopar.runtime.gradient_groups import of_all_ranks
from autopar.runtime.loop_record import LoopRecord
from autopar.runtime.named import CHECKS, named
from autopar.runtime.sample import digest

SELDOM = 50
"""Steps between two comparisons of tensors on a GPU."""
LOCAL = (
    "With batches=autopar.Batches(local=True) every rank passes a part of the same size "
    "(DistributedSampler, or DataLoader(drop_last=True)); pad or drop the remainder."
)
MODES = "the modes of the model's modules"
OUTSIDE = "the values that the model reads besides its parameters, buffers and inputs"
ALIKE = "Set it to the same value on every rank, before the same call."
SAME_PART = (
    "Ranks with the same data_rank pass the same part of the batch: sample by "
    "parallel.data_replicas and parallel.data_rank, and use the same seed for shuffling."
)


class Captures(Protocol):
    """Captures graphs during training."""

    def outside(self) -> Outside:
        """Return the values that forward or the loss may read besides weights, if changed."""

    def captured_digest(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], state: ModelState
    ) -> str:
        """Return the digest of the graph that this rank captures of a batch now."""


class Refusals(Protocol):
    """What is refused to this rank alone."""

    @property
    def is_any(self) -> bool:
        """Whether anything is."""

    def settle(self, group: dist.ProcessGroup | None) -> None:
        """Raise on all ranks what one of them refuses; all ranks call it."""


class BatchAgreement:
    """Compares the batches of all ranks, step by step."""

    def __init__(self, compiler: Captures, loop: LoopRecord) -> None:
        self._steps, self._compiler, self._loop = 0, compiler, loop
        self._captured: tuple[Any, str] = (None, "")
        # A separate group on the host: the step's collectives keep their order, and no GPU syncs.
        self._group = of_all_ranks(BATCHES, "gloo") if dist.get_world_size() > 1 else None

    def check(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        part: int,
        state: ModelState,
        *,
        local: bool,
        refusals: Refusals | None = None,
    ) -> None:
        """Raise `RankMismatchError`, on all ranks, if batches or models do not match.

        `part` is the index of this rank's part of the batch, 0 if all pass the whole batch.  A rank that
        captured another graph would plan it, and wait for the others.  If `refusals` of any rank exist,
        all ranks settle them.
        """
        if self._group is None:
            self._loop.clear()
            if refusals is not None:
                refusals.settle(None)
            return
        batch, modes = Batch.of(args, kwargs), _modes(state)
        around = self._compiler.outside()
        outside = _in_text(around)
        first = self._steps == 0
        kinds = _number(repr(batch.signature))
        values = _number(batch.digest if first else _sample(batch, self._steps % SELDOM == 0))
        self._steps += 1
        refused = refusals is not None and refusals.is_any
        rows = self._gathered(
            kinds, values, part, _number(modes), _number(outside), refused, *self._loop_numbers()
        )
        events = self._loop.events
        self._loop.clear()
        if refusals is not None and any(row[5] for row in rows):
            refusals.settle(self._group)
        if _differ(rows, 3):
            agreement.assert_same_on_all_ranks(MODES, modes, ALIKE)
        step = "the first step" if first else f"step {self._steps}"
        if _differ(rows, 0):
            words = f"the shapes of the batch of {step}" if local else f"the batch of {step}"
            remedy = LOCAL if local else agreement.SAME_BATCH
            agreement.assert_same_on_all_ranks(words, _in_words(batch), remedy)
        self._compare_loops(rows, events)
        if _differ(rows, 4) and _differ(
            self._gathered(_number(self._graph(args, kwargs, state, around))), 0
        ):
            agreement.assert_same_on_all_ranks(OUTSIDE, outside or "as it was", ALIKE)
        if len({(row[2], row[1]) for row in rows}) > len({row[2] for row in rows}):
            odd = [rank for rank, row in enumerate(rows) if row[1] != _first(rows, row[2])]
            remedy = SAME_PART if local else agreement.SAME_BATCH
            raise RankMismatchError(
                f"Ranks disagree about the batch of {step}: rank {', '.join(map(str, odd))} passed "
                f"other values than the first rank of the same part ({batch}). {remedy}"
            )

    def _loop_numbers(self) -> tuple[int, int]:
        return self._loop.share, _number(self._loop.text())

    def _compare_loops(self, rows: list[list[int]], events: list[loop_record.Event]) -> None:
        """Raise `RankMismatchError` on all ranks if ranks of one worker did not do the same."""
        shares = [row[6] for row in rows]
        if len({(row[6], row[7]) for row in rows}) == len(set(shares)):
            return
        everyone: list[Any] = [None] * len(rows)
        dist.all_gather_object(everyone, events, group=self._group)
        if text := loop_record.difference(shares, everyone):
            raise RankMismatchError(
                f"Ranks are out of step: since the last step {text}. {loop_record.REMEDY}"
            )

    def _graph(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        state: ModelState,
        outside: Outside,
    ) -> str:
        """Return the digest of the graph that this rank captures, cached for the last key.

        A failed capture returns its message, so that every rank has something to compare.
        """
        key = state, Batch.of(args, kwargs).signature, outside
        if key != self._captured[0]:
            try:
                self._captured = key, self._compiler.captured_digest(args, kwargs, state)
            except AutoparError as error:
                return str(error)  # the call itself raises it, on all ranks
        return self._captured[1]

    def _gathered(self, *mine: int) -> list[list[int]]:
        """Return the numbers of every rank, one row each."""
        here = torch.tensor(mine, dtype=torch.int64, device="cpu")
        found = [torch.empty_like(here) for _ in range(dist.get_world_size())]
        self._loop.waits_since = time.monotonic()
        try:
            with named(CHECKS):
                dist.all_gather(found, here, group=self._group)
        finally:
            self._loop.waits_since = None
        rows: list[list[int]] = torch.stack(found).tolist()
        return rows


def _differ(rows: list[list[int]], column: int) -> bool:
    return len({row[column] for row in rows}) > 1


def _modes(state: ModelState) -> str:
    """Return the modes of all modules as text, in the order of ``named_modules()``."""
    modes = "".join("te"[not mode] for mode in state.modes)
    return f"{'with' if state.gradients else 'without'} gradients, train or eval: {modes}"


def _in_text(outside: Outside) -> str:
    """Describe the outside values that changed: by value if it has a text, else by name."""
    return ", ".join(
        f"{place} is {value[-1]}" if _is_told(value) else place for place, value in outside
    )


def _is_told(value: Any) -> bool:
    return isinstance(value, tuple) and isinstance(value[-1], str)


def _first(rows: list[list[int]], part: int) -> int:
    return next(row[1] for row in rows if row[2] == part)


def _in_words(batch: Batch) -> str:
    constants = ", ".join(f"{key}={text}" for key, text in batch.constants)
    return ", ".join(filter(None, [str(batch), constants]))


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)


def _sample(batch: Batch, on_gpu: bool) -> str:
    """Return a digest of evenly spaced elements of every tensor."""
    tensors = (tensor for _, tensor in sorted(batch.tensors.items()))
    return digest(t for t in tensors if not t.is_meta and (t.is_cpu or on_gpu))
