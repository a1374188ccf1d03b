"""What every rank does where a stage's gradients are summed while its last backward still runs."""

from __future__ import annotations

from unittest import mock

from autopar.runtime.pipeline.step import Step
from tests.parity import reference, sgd
from tests.pipelines import Line, check_gradients, pipelined


def launched_before(line: Line) -> tuple[int, int]:
    """Of a step equal to the single process: buckets, and those whose sums have begun behind the last
    backward of their stage."""
    case = reference(line.name)
    parallel = pipelined(line, case)
    begun, every = [], []
    reduce = Step.reduce

    def noted(self: Step, stage: int) -> None:
        filling = self._filling(stage)
        if filling is not None:
            begun.append(filling._launched)
            every.append(len(filling.buckets))
        reduce(self, stage)

    optimizer = sgd(parallel, case.rate)
    with mock.patch.object(Step, "reduce", noted):
        for batch in case.batches:
            optimizer.zero_grad()
            parallel.train_step(**batch)
            optimizer.step()
    check_gradients(parallel, case)
    return sum(every), sum(begun)
