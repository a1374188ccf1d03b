"""The module for asynchronous pipelines: stages update weights while batches are in flight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import torch

from autopar.errors import InputError
from autopar.request.batch import Batch
from autopar.runtime import agreement
from autopar.runtime.checkpointable import refuse_without_gradients
from autopar.runtime.failures import refuse_broken
from autopar.runtime.one_thread import in_one_thread
from autopar.runtime.pipeline.built import Built
from autopar.runtime.pipeline.module import Pipelined
from autopar.runtime.pipeline.stream import Stream
from autopar.runtime.pipeline.versions import Versions
from autopar.runtime.surroundings import Kept


class Asynchronous(Pipelined):
    """Trained with ``losses = parallel.train_steps(batches, optimizer)``.

    Every batch is one update of every stage, as in a plain loop, but its gradient is computed with
    stale weights.  The schedule defines which updates they lack (docs/schedules.md).
    """

    TRAINS_BY = "train_steps(batches, optimizer)"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._streams = Kept()

    @in_one_thread
    def train_steps(
        self, batches: Sequence[Mapping[str, Any]], optimizer: torch.optim.Optimizer
    ) -> torch.Tensor:
        """Make one update per batch, without draining the pipeline in between; it is empty on return.

        Return the losses of all batches, equal on all ranks.  The batches must have equal shapes.
        `optimizer` is any optimizer over ``parallel.parameters()``.  On each rank it steps once per
        batch with the gradients of that rank's stage, which are cleared afterwards.
        """
        refuse_without_gradients(self)
        built = self._stream_of(batches)
        refuse_broken(self._broken)
        self._begin_call("train_steps")
        wanted = (partial(self.refuse_what_is_not_there, batch) for batch in batches)
        self._agree(batches[0], *wanted, partial(self._refuse, optimizer))
        agreement.assert_same_on_all_ranks("the number of batches", str(len(batches)))

        self._leaves.refresh()
        actions = built.plan.schedule.workers[built.worker]
        versions = Versions(self._slots, self._leaves, actions)

        def step() -> None:
            optimizer.step()
            self._gradients.zero_grad()

        def advance() -> None:
            self._gradients.finish()
            versions.update(step)

        stream = Stream(
            self._stages(built),
            self._links(built),
            _Inputs(self, built, batches).of,
            seed=self.seeds.next() if built.is_random else 0,
            filling=self._gradients.filling,
            update=self._update_buffers,
            versions=versions,
            advance=advance,
        )
        with self.whole_or_ended():
            stream.run(actions)
            versions.end()
            return self._everywhere(built, _by_batch(stream, built), (len(batches),))

    def _stream_of(self, batches: Sequence[Mapping[str, Any]]) -> Built:
        """Return the pipeline for these batches.  Raise `InputError` if their shapes differ."""
        if not isinstance(batches, Sequence) or not batches:
            raise InputError(
                "train_steps takes a list of batches, each a dict of keyword arguments: updates "
                "do not wait for the next call, so the more batches a call has, the less the "
                "stages idle."
            )
        signatures = [Batch.of((), batch).signature for batch in batches]
        odd = next((i for i, each in enumerate(signatures) if each != signatures[0]), None)
        if odd is not None:
            raise InputError(
                f"Batch {odd} ({Batch.of((), batches[odd])}) differs in shape from batch 0 "
                f"({Batch.of((), batches[0])}). Pass batches of other shapes in a separate call."
            )
        return self._streaming(super()._for_batch(batches[0], training=True), len(batches))

    def _for_batch(self, batch: Mapping[str, Any], training: bool) -> Built:
        """Return the pipeline of a single forward pass."""
        built = super()._for_batch(batch, training)
        return self._streaming(built, 1) if training else built

    def _streaming(self, built: Built, batches: int) -> Built:
        key = (built.plan.digest, built.captured, batches)
        if key not in self._streams:
            self._streams.keep(key, built.streaming(batches), None)
        found: Built = self._streams.use(key)
        return found

    def _refuse(self, optimizer: torch.optim.Optimizer) -> None:
        """Raise `InputError` for an optimizer of other parameters, or gradients that exist already."""
        own = {id(parameter) for parameter in self.parameters()}
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if own and own.isdisjoint(held):
            raise InputError(
                "This optimizer has none of the pipeline's parameters: create it from "
                "parallel.parameters(), on every rank."
            )
        left = next((n for n, p in self.named_parameters() if p.grad is not None), None)
        if left is not None:
            raise InputError(
                f"Parameter {left!r} has a gradient already. Every batch makes an update here, "
                "so gradients cannot be accumulated: call parallel.zero_grad() first."
            )

    def train_step(self, **_: Any) -> NoReturn:
        """Raise `InputError`: a single batch would wait for its own update."""
        raise InputError(
            f"Pipeline(schedule={self._name!r}) updates weights while batches are in flight: call "
            f"parallel.{self.TRAINS_BY}, which steps the optimizer itself. Or pass a synchronous "
            "schedule to autopar.parallelize."
        )

    def clip_grad_norm_(self, *_: Any, **__: Any) -> NoReturn:
        """Raise `InputError`: stages update at different times, so there is no global gradient."""
        raise InputError(self._without("The whole model has no gradient to take a norm of"))

    def grad_scaler(self, **_: Any) -> NoReturn:
        """Raise `InputError`: all stages would have to agree at once on whether to skip a step."""
        raise InputError(self._without("Overflows cannot be found on all stages together"))

    def _without(self, what: str) -> str:
        return (
            f"{what}: under Pipeline(schedule={self._name!r}) each stage updates at its own "
            "time. Use a synchronous schedule, or leave it out."
        )

    @property
    def _name(self) -> str:
        return self.plan.schedule.name


class _Inputs:
    """The inputs of this rank's stage for each microbatch of a stream, made batch by batch."""

    def __init__(
        self, model: Asynchronous, built: Built, batches: Sequence[Mapping[str, Any]]
    ) -> None:
        self._model, self._built, self._batches = model, built, batches
        self._at = -1
        self._parts: list[dict[str, torch.Tensor]] = []

    def of(self, microbatch: int) -> dict[str, torch.Tensor]:
        """Return the inputs of a microbatch.  Forwards run in the order of the batches."""
        batch, part = divmod(microbatch, self._built.plan.microbatches)
        if batch != self._at:
            self._at = batch
            self._parts = self._model._microbatches(self._built, self._batches[batch])
        return self._parts[part]


def _by_batch(stream: Stream, built: Built) -> torch.Tensor | None:
    """Return the loss of each batch, or None if this worker has no losses."""
    if not stream.losses:
        return None
    losses = torch.stack([stream.losses[number] for number in sorted(stream.losses)])
    by_batch: torch.Tensor = losses.unflatten(0, (-1, built.plan.microbatches)).sum(1)
    return by_batch
