"""Determines a model's pipeline stages, as requested or by search.

Shared by `plan`, `parallelize` and the commands.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch

from autopar.capture import Traced
from autopar.compile.compiler import Compiler
from autopar.compile.microbatch import as_one, check_divisible, part
from autopar.errors import CaptureError, ConstraintError, InputError
from autopar.ir.graph import Graph
from autopar.pipeline.build.choose import Source, choose
from autopar.pipeline.build.comparison import Chosen
from autopar.pipeline.build.pipeline_spec import PipelineSpec
from autopar.pipeline.build.sizes import NotLinear, graph_between
from autopar.pipeline.build.staged import Staged
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.request.batch import Batch, leaves_of, mapped
from autopar.request.pipeline import Pipeline
from autopar.runtime import agreement
from autopar.utils.messages import argument
from autopar.utils.processes import Aside


def chosen(compiler: Compiler, batch: Mapping[str, Any], asked: Pipeline) -> Chosen:
    """Choose between the best pipeline and the best plan without stages.

    Raise `ConstraintError` for constraints and presets: they name mesh axes, and the mesh of a stage
    is not known yet.
    """
    settings = compiler.settings(None)
    if settings.constraints or settings.preset:
        raise ConstraintError(
            f"Constraints and presets name mesh axes, which {argument('stages', 'auto')} has yet "
            f"to choose. Pass a number of stages ({argument('stages', 2)}), or leave the "
            "constraints out."
        )
    with Aside(lambda: _one_sample(compiler, batch)) as one:
        traced = compiler.traced(batch)
        whole = compiler.graph_of(traced)
        if asked.is_open and not _is_trained(whole):
            return Chosen(None, compiler.compile(whole), ())
        source = _source(compiler, batch, traced, one.result)
        return choose(source, compiler.mesh, compiler.hardware, settings, asked)


def _one_sample(compiler: Compiler, batch: Mapping[str, Any]) -> Traced:
    """Trace one sample.

    Graphs of sizes in between are interpolated linearly from this one and the whole batch's.
    """
    with _unsaid():
        return compiler.traced(of_samples(batch, 1))


@contextmanager
def _unsaid() -> Iterator[None]:
    """Suppress warnings and log messages, which the capture of the whole batch issues already."""
    disabled = logging.root.manager.disable
    logging.disable(max(disabled, logging.WARNING))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def refuse_asynchronous(asked: Pipeline) -> None:
    """Raise `InputError` if ``stages="auto"`` is combined with asynchronous schedules."""
    if asked.asynchronous:
        raise InputError(
            f"{argument('stages', 'auto')} chooses among schedules whose steps are those of one "
            f"process. Pass a number of stages ({argument('stages', 2)}) with "
            f"{argument('asynchronous', True)}, or leave it out."
        )


def agreed_stages(
    compiler: Compiler, batch: Mapping[str, Any], asked: Pipeline
) -> tuple[PipelineSpec, Staged | None] | None:
    """Return the pipeline to build, the same on all ranks; None if it is better to have no stages.

    For ``"auto"`` rank 0 searches.  The second value is rank 0's compiled pipeline, None elsewhere and
    for a pipeline that was requested explicitly.
    """
    if asked.stages != "auto":
        return PipelineSpec.of(compiler.mesh, asked, samples_of(batch)), None
    refuse_asynchronous(asked)
    agreement.assert_same_on_all_ranks("the example inputs", Batch.of((), batch).digest)
    made: list[Staged] = []

    def decide() -> tuple[str, ...]:
        found = chosen(compiler, batch, asked)
        if found.staged is None:
            return ()
        made.append(found.staged)
        return (found.staged.plan.to_json(),)

    texts = agreement.from_first_rank(decide)
    if not texts:
        return None
    plan = PipelinePlan.from_json(texts[0], "the plan of rank 0")
    return PipelineSpec.like(plan), made[0] if made else None


def source_of(compiler: Compiler, batch: Mapping[str, Any]) -> Source:
    """Return a `Source`, which provides the model's graph for any number of samples."""
    return _source(
        compiler, batch, compiler.traced(batch), lambda: compiler.traced(of_samples(batch, 1))
    )


def _source(
    compiler: Compiler, batch: Mapping[str, Any], traced: Traced, one: Callable[[], Traced]
) -> Source:
    """Make a `Source` from the trace of the whole batch; `one` returns the trace of one sample.

    Raise `InputError` if the graph returns no loss, or outputs besides the loss.
    """
    whole = compiler.graph_of(traced)
    if whole.loss is None:
        raise InputError(
            f"{argument('stages', 'auto')} needs a loss from {whole.name}: pass the targets with the "
            f"batch, or {argument('loss')}."
        )
    if whole.outputs:
        raise InputError(
            f"{argument('stages', 'auto')} needs only the loss from {whole.name}: leave "
            f"{argument('outputs')} out."
        )
    size = samples_of(batch)
    captured = {size: whole}
    failed: dict[int, CaptureError] = {}

    def capture(samples: int) -> Graph:
        if samples in failed:
            raise failed[samples]
        if samples not in captured:
            try:
                found = one() if samples == 1 else compiler.traced(of_samples(batch, samples))
                captured[samples] = compiler.graph_of(found, whole=traced)
            except CaptureError as error:
                failed[samples] = error
                raise
        return captured[samples]

    def of_size(samples: int) -> Graph:
        """Interpolate between captured graphs if sizes are linear, otherwise capture."""
        for other, graph in captured.items():
            if samples not in captured and other != size:
                with suppress(NotLinear):
                    return graph_between((size, whole), (other, graph), samples)
        return capture(samples)

    def parted(pieces: int) -> Graph:
        if pieces == 1:
            return whole
        return part(whole, of_size(size // pieces), pieces).microbatch

    return Source(size, whole, capture, parted, _whole_because(whole))


def _is_trained(whole: Graph) -> bool:
    """Whether the graph returns the loss only, which pipeline stages require."""
    return whole.loss is not None and not whole.outputs


def _whole_because(whole: Graph) -> str | None:
    """Return why microbatches would change the result of the step; None if they would not."""
    try:
        check_divisible(whole, 2)
    except InputError as error:
        return str(error).removesuffix(f" {as_one()}")
    return None


def samples_of(batch: Mapping[str, Any]) -> int:
    """Return the batch size: the first dim of the first tensor.  Raise `InputError` without one."""
    sizes = [v.shape[0] for _, v in leaves_of(batch, "") if isinstance(v, torch.Tensor) and v.dim()]
    if not sizes:
        kinds = ", ".join(f"{name!r} is a {type(value).__name__}" for name, value in batch.items())
        raise InputError(
            f"The batch has no tensor whose first dim could be its size: {kinds or 'it is empty'}. Pass "
            "tensors, or dicts, tuples and dataclasses of them."
        )
    if not sizes[0]:
        raise InputError("The example batch is empty: its first dim is 0. Pass one with samples.")
    return int(sizes[0])


def of_samples(batch: Mapping[str, Any], samples: int) -> Mapping[str, Any]:
    """Return the first `samples` samples of a batch."""
    size = samples_of(batch)

    def cut(value: Any, _: str) -> Any:
        is_part = isinstance(value, torch.Tensor) and value.dim() and value.shape[0] == size
        return value[:samples] if is_part else value

    made: Mapping[str, Any] = mapped(batch, "", cut)
    return made
