"""Prices a configuration: makes the plan that it amounts to, by the same code as `autopar.plan`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from autopar.api import compile_model, compile_staged
from autopar.capture import ExampleInputs
from autopar.compile.automatic import samples_of
from autopar.compile.given import as_hardware, offered_inputs
from autopar.errors import InfeasibleError, InputError
from autopar.ir.graph import short
from autopar.ir.mesh import Mesh
from autopar.pipeline.build.staged import Staged
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from autopar.price.figures import StepFigures, figures_of, graphs_of
from autopar.request.batch import as_call, leaves_of, places_of
from autopar.request.configurations.configuration import Configuration
from autopar.request.configurations.requested import Requested, requested
from autopar.request.options import Loss
from autopar.request.planning import Planning
from autopar.sharding.sharding_problem import Compilation, device_memory
from autopar.utils.messages import argument
from cost_models.hardware import Hardware

MOST = 0.9
"""An axis that divides a smaller share of the work is mentioned."""
HOST, DEVICE = "host", "device"
"""The axes of a mesh of several hosts, for our own choice."""


@dataclass(frozen=True)
class Priced:
    """A configuration with every value stated, the plan that it amounts to, and its figures.

    `said` is what differs between the two, in sentences.  `memory_nbytes` is the memory of a device.
    """

    configuration: Configuration
    plan: Plan | PipelinePlan
    figures: StepFigures
    said: tuple[str, ...]
    memory_nbytes: float

    @property
    def fits(self) -> bool:
        """Whether a device has the memory that the step needs."""
        return self.figures.peak_nbytes <= self.memory_nbytes


@dataclass(frozen=True)
class Job:
    """What a configuration trains: model, one global batch, loss, hardware, and the source of times."""

    model: nn.Module
    inputs: Any
    hardware: Hardware
    loss: Loss | None = None
    database: Path | None = None

    @property
    def samples(self) -> int:
        """Samples of the batch."""
        return samples_of(places_of(*as_call(self.inputs)))

    @property
    def tokens(self) -> int | None:
        """Tokens of the batch: elements of its first tensor if that has a row of ids for each sample."""
        every = (
            v
            for k, place in places_of(*as_call(self.inputs)).items()
            for _, v in leaves_of(place, k)
        )
        first = next((v for v in every if isinstance(v, torch.Tensor)), None)
        is_ids = first is not None and first.dim() == 2 and not first.is_floating_point()
        return first.numel() if first is not None and is_ids else None

    def compiled(
        self, configuration: Configuration, mesh: Mesh, **options: Any
    ) -> Compilation | Staged:
        """Return the plan of a request, with the configuration's optimizer and precision."""
        given = {
            "loss": self.loss, "precision": configuration.precision, "hardware": self.hardware,
            "planning": Planning(self.database), **options,
        }  # fmt: skip
        if configuration.optimizer is not None:
            given["optimizer"] = configuration.optimizer
        if given.get("pipeline") in (None, 1):
            return compile_model(self.model, mesh, self.inputs, **given)
        return compile_staged(self.model, mesh, self.inputs, **given)

    def figures(self, made: Compilation | Staged) -> StepFigures:
        """Return the figures of a plan of this job."""
        return figures_of(made, self.hardware, self.samples, self.tokens)


def price(job: Job, configuration: Configuration) -> Priced:
    """Return the plan of a configuration for a job, with its figures.

    Nothing is chosen by memory: a step that does not fit is priced too.  Raises `InputError` or a
    subclass for values that contradict each other, parallelisms that autopar does not run, and sizes
    that the configuration does not divide.
    """
    settled = configuration.settled(job.samples)
    if settled.batch != job.samples:
        raise InputError(
            f"{argument('batch', settled.batch)}: the model's example inputs have {job.samples} "
            "samples. Make them one global batch of the configuration, or correct its batch."
        )
    return _priced(job, settled)


def job_of(
    model: nn.Module,
    example_inputs: ExampleInputs | None = None,
    *,
    hardware: str | Hardware | None = None,
    loss: Loss | None = None,
    database: Path | None = None,
) -> Job:
    """Return the job of a model.

    `example_inputs` is one global batch; the other arguments are those of `autopar.plan`.
    """
    inputs = example_inputs if example_inputs is not None else offered_inputs(model)
    return Job(model, inputs, as_hardware(hardware), loss, database)


def _priced(job: Job, settled: Configuration) -> Priced:
    """Return the plan of a settled configuration."""
    asked = requested(settled)
    made = job.compiled(
        settled, asked.mesh, preset=asked.preset, recompute=asked.recompute,
        pipeline=1 if asked.pipeline.is_one_stage else asked.pipeline, memory_limit="none",
    )  # fmt: skip
    said = (*asked.said, *_differences(settled, asked, made))
    memory = device_memory(asked.mesh, job.hardware)
    return Priced(settled, made.plan, job.figures(made), said, memory)


@dataclass(frozen=True)
class Choice:
    """What autopar would choose, and its figures; or why nothing fits."""

    plan: Plan | PipelinePlan | None = None
    figures: StepFigures | None = None
    why: str = ""


def choice(job: Job, settled: Configuration) -> Choice:
    """Return what autopar would choose for this job on the configuration's devices."""
    try:
        made = _chosen(job, settled)
    except InfeasibleError as error:
        return Choice(why=str(error))
    return Choice(made.plan, job.figures(made))


def _chosen(job: Job, settled: Configuration) -> Compilation | Staged:
    """Return the best plan, with stages where they pay."""
    assert settled.devices is not None
    of_host = job.hardware.devices_per_host
    hosts, rest = divmod(settled.devices, of_host)
    mesh = Mesh.of(settled.devices, names=(DEVICE,))
    if hosts > 1 and not rest:
        mesh = Mesh.of(hosts, of_host, names=(HOST, DEVICE))
    pipeline = "auto" if isinstance(job.inputs, Mapping) else 1
    return job.compiled(settled, mesh, pipeline=pipeline)


def _differences(
    settled: Configuration, asked: Requested, made: Compilation | Staged
) -> Iterator[str]:
    """Yield how the plan differs from the configuration."""
    if settled.recompute == "attention":
        yield _of_attention(made)
    plans = [each.plan for each in made.plan.stages] if isinstance(made, Staged) else [made.plan]
    for place, axis in enumerate(plans[0].mesh):
        shares = [plan.shares[place].flops for plan in plans if plan.shares]
        if axis.size > 1 and shares and min(shares) < MOST:
            where = f" of stage {shares.index(min(shares))}" if len(plans) > 1 else ""
            yield (
                f"The {axis.size} ranks of axis {axis.name} divide {min(shares):.0%} of work{where}; "
                "each of them does the rest."
            )


def _of_attention(made: Compilation | Staged) -> str:
    fused = any(
        short(node.op) == "scaled_dot_product_attention"
        for graph in graphs_of(made)
        for node in graph.nodes
    )
    if fused:
        return (
            "Attention is one fused operator here, which keeps no scores, so that recomputing attention "
            "alone changes nothing."
        )
    return (
        "Attention is not fused in this model, and its scores are kept: recomputing it alone does not "
        f"run here. The closest is {argument('recompute', 'full')}."
    )
