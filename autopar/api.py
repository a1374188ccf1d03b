"""The two calls that people make: `plan` decides, `parallelize` decides and builds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from autopar.capture import ExampleInputs
from autopar.compile.automatic import (
    agreed_stages,
    chosen,
    refuse_asynchronous,
    samples_of,
)
from autopar.compile.compiler import Compiler, captured
from autopar.compile.given import (
    MeshLike,
    as_call,
    as_hardware,
    as_mesh,
    meshes_of,
    offered_inputs,
)
from autopar.compile.pipeline_compiler import PipelineCompiler
from autopar.errors import InfeasibleError, InputError
from autopar.ir.graph import Graph
from autopar.ir.mesh import Mesh
from autopar.pipeline.build.pipeline_spec import PipelineSpec
from autopar.pipeline.build.staged import Staged
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from autopar.plans.record import View
from autopar.request.arrivals import arrived
from autopar.request.batch import Batch
from autopar.request.batches import Batches
from autopar.request.meta import without_weights
from autopar.request.old_spellings import with_old_spellings
from autopar.request.optimizers import OptimizerLike
from autopar.request.options import Constraints, Loss, Options
from autopar.request.pipeline import Pipeline, StagesLike
from autopar.request.planning import Planning
from autopar.request.weights import Weights, WeightsSource
from autopar.runtime import agreement, world
from autopar.runtime import failure_watchdog as faults
from autopar.runtime.inference import outside_inference
from autopar.runtime.parallel import Parallel
from autopar.runtime.pipeline.asynchronous import Asynchronous
from autopar.runtime.pipeline.module import Pipelined
from autopar.sharding.sharding_problem import Compilation
from autopar.utils.progress import Watch, alone, unwatched
from cost_models.hardware import Hardware


@with_old_spellings
@outside_inference
def parallelize(
    model: nn.Module,
    mesh: MeshLike,
    example_inputs: ExampleInputs | None = None,
    *,
    loss: Loss | None = None,
    optimizer: OptimizerLike = torch.optim.AdamW,
    precision: Any = None,
    preset: str | None = None,
    constraints: Constraints | None = None,
    memory_limit: float | str | None = None,
    recompute: str | None = None,
    hardware: str | Hardware | None = None,
    pipeline: Pipeline | StagesLike = 1,
    batches: Batches | None = None,
    weights: Weights | WeightsSource | None = None,
    planning: Planning | None = None,
) -> Parallel | Pipelined:
    """The model as a distributed training step; call it on every rank, under ``torchrun``.

    Rank 0 plans, and its weights count.  What comes back trains by ``loss = parallel(**batch)`` and
    ``loss.backward()``; with stages it is a `Pipelined`, which trains by ``train_step(**batch)``.

    - `model`: returns its loss, an object with ``.loss``, or what `loss` takes; it may lie on the meta
      device.
    - `mesh`: a shape such as ``(2, 4)``, a `Mesh` or a `DeviceMesh`; a number of devices, of
      which every mesh of one or two axes is compared; or a sequence of `Mesh` to choose from (all of
      up to three axes: ``autopar.request.views.views(64, 3)``).
    - `example_inputs`: one global batch, as a dict of keyword arguments (targets of `loss` among them)
      or a tuple; left out where the model brings its own.
    - `loss`: called as ``loss(output, **targets)``.
    - `optimizer`: the kind that you will use, for the memory of its state and the time of its step:
      a class, its name, or ``functools.partial(torch.optim.AdamW, fused=True)``.
    - `precision`: None (as the model is), ``"bfloat16"``, ``"float16"``, or a ``torch.autocast``.
    - `preset`, `constraints`: a known parallelism; patterns over names and their types, or tables of
      them below ``"pin"``, ``"forbid"`` and ``"prefer"`` (`autopar.request.constraints.from_user`), or
      a TOML file of these.
    - `memory_limit`: per device, in bytes or as ``"40GiB"``; None is the device's own, where the best
      plan would need more, and ``"none"`` permits a plan without stages to do so, as a preset may.
    - `recompute`: ``"none"``, ``"selective"`` or ``"full"`` says what every block (`autopar.ir.blocks`)
      does in the backward, while what is no block keeps what it made; None leaves it to the solver,
      which lets blocks forget only where the memory limit asks for it.
    - `hardware`: a profile's name or file; None is this machine.
    - `pipeline`: a number of stages, ``"auto"``, or a `Pipeline` with its schedule and microbatches.
      With ``asynchronous=True`` an `Asynchronous` comes back, which trains by
      ``train_steps(batches, optimizer)``.
    - `batches`: a `Batches`: each rank's own part, other outputs, other shapes.
    - `weights`: where the weights are read from in slices, or a `Weights` with an initialiser.
    - `planning`: a `Planning`: measured times, an edited file, what may stay undivided.

    Raises `InputError` and its kinds for what does not fit, `CaptureError` for a model that cannot
    be captured as it is, `InfeasibleError` where nothing meets the constraints.
    """
    model = arrived(model)
    options = Options.of(
        loss=loss, optimizer=optimizer, precision=precision, memory_limit=memory_limit,
        preset=preset, constraints=constraints, recompute=recompute, pipeline=pipeline,
        batches=batches, planning=planning,
    )  # fmt: skip
    given = Weights.of(weights)
    if options.pipeline.is_one_stage and len(meshes := meshes_of(mesh, options)) > 1:
        mesh = _agreed_view(model, meshes, example_inputs, hardware, options)
    device_mesh = world.device_mesh(mesh if isinstance(mesh, DeviceMesh) else as_mesh(mesh))
    faults.watch()
    compiler = Compiler(
        without_weights(model, options.precision.compute),
        as_mesh(device_mesh),
        as_hardware(hardware),
        options,
    )
    if not options.pipeline.is_one_stage:
        batch = _batch_of(model, example_inputs)
        found = agreed_stages(compiler, batch, options.pipeline)
        if found is not None:
            return _pipelined(model, compiler, *found, batch, given)
    return _whole(model, device_mesh, compiler, example_inputs, given)


def _whole(
    model: nn.Module,
    device_mesh: DeviceMesh,
    compiler: Compiler,
    example_inputs: ExampleInputs | None,
    weights: Weights,
) -> Parallel:
    """The model in one piece."""
    options = compiler.options
    example = example_inputs if example_inputs is not None else offered_inputs(model)
    if not options.batches.local:
        agreement.assert_same_on_all_ranks("the example inputs", Batch.of(*as_call(example)).digest)
    program = compiler.program(example, edited=options.planning.source)
    return Parallel(
        model, device_mesh, program, compiler, example=Batch.of(*as_call(example)),
        replan=options.batches.replan, local_input=options.batches.local, weights=weights,
    )  # fmt: skip


def _pipelined(
    model: nn.Module,
    compiler: Compiler,
    wanted: PipelineSpec,
    given: Staged | None,
    example: Mapping[str, Any],
    weights: Weights,
) -> Pipelined:
    """The model as stages of a pipeline."""
    agreement.assert_same_on_all_ranks("the example inputs", Batch.of((), example).digest)
    staged = PipelineCompiler(compiler, wanted, given)
    built = staged.first(example)
    aliases = compiler.graph(example).aliases
    kind = Asynchronous if built.plan.schedule.asynchronous else Pipelined
    return kind(
        model, built, staged, example=Batch.of((), example), aliases=aliases, weights=weights,
    )  # fmt: skip


def _batch_of(model: nn.Module, example_inputs: ExampleInputs | None) -> Mapping[str, Any]:
    """The batch of a pipeline, by name."""
    example = example_inputs if example_inputs is not None else offered_inputs(model)
    if not isinstance(example, Mapping):
        raise InputError(
            f"A pipeline takes its batch by name, not as a {type(example).__name__}: example inputs "
            f"have to be a dict of keyword arguments of {type(model).__name__}.forward."
        )
    return example


@with_old_spellings
def plan(
    model: nn.Module,
    mesh: MeshLike,
    example_inputs: ExampleInputs | None = None,
    *,
    hardware: str | Hardware | None = None,
    **options: Any,
) -> Plan | PipelinePlan:
    """What `parallelize` would decide, without processes and without weights.

    A number of devices for `mesh` is searched: every mesh of one or two axes that they make.
    The model may be on the meta device.  `options` are those of `parallelize`, but for `weights`.
    """
    asked = Options.of(**options)
    if asked.pipeline.is_one_stage:
        return _best_view(model, meshes_of(mesh, asked), example_inputs, hardware, asked).plan
    return _staged(model, mesh, example_inputs, hardware, asked).plan


@with_old_spellings
def compile_staged(
    model: nn.Module,
    mesh: MeshLike,
    example_inputs: ExampleInputs | None = None,
    *,
    hardware: str | Hardware | None = None,
    pipeline: Pipeline | StagesLike = "auto",
    **options: Any,
) -> Staged | Compilation:
    """A pipeline with its stages' graphs and sources; where ``"auto"`` finds none better, a plan."""
    asked = Options.of(pipeline=pipeline, **options)
    return _staged(model, mesh, example_inputs, hardware, asked)


def _staged(
    model: nn.Module,
    mesh: MeshLike,
    example_inputs: ExampleInputs | None,
    hardware: str | Hardware | None,
    asked: Options,
) -> Staged | Compilation:
    """A pipeline as it was asked for, or the best of all, with or without stages."""
    is_auto = asked.pipeline.stages == "auto"
    if is_auto and not isinstance(example_inputs or offered_inputs(model), Mapping):
        return _best_view(model, meshes_of(mesh, asked), example_inputs, hardware, asked)
    inputs = _batch_of(model, example_inputs)
    bare = without_weights(model, asked.precision.compute)
    compiler = Compiler(bare, as_mesh(mesh), as_hardware(hardware), asked)
    if is_auto:
        refuse_asynchronous(asked.pipeline)
        found = chosen(compiler, inputs, asked.pipeline)
        best = found.staged or found.plain
        assert best is not None
        return best
    wanted = PipelineSpec.of(compiler.mesh, asked.pipeline, samples_of(inputs))
    return PipelineCompiler(compiler, wanted).decide(inputs)[0]


@with_old_spellings
def compile_model(
    model: nn.Module,
    mesh: MeshLike,
    example_inputs: ExampleInputs | None = None,
    *,
    hardware: str | Hardware | None = None,
    **options: Any,
) -> Compilation:
    """`plan` without stages, with every step's output: graph, problem, plan and source."""
    asked = Options.of(**options)
    return _best_view(model, meshes_of(mesh, asked), example_inputs, hardware, asked)


@with_old_spellings
def plan_frontier(
    model: nn.Module,
    mesh: MeshLike,
    example_inputs: ExampleInputs | None = None,
    *,
    hardware: str | Hardware | None = None,
    watch: Watch = unwatched,
    **options: Any,
) -> tuple[Plan, ...]:
    """Plans from the fastest to the smallest: corners of the lower convex hull of (bytes, seconds).

    The hull is of all plans by the solver's count; between two corners there may be others.  `watch`
    sees them come.
    """
    capture = partial(captured_by, model, mesh, example_inputs, hardware, Options.of(**options))
    compiler, graph = alone(capture, watch, "capturing the model")
    return tuple(made.plan for made in compiler.frontier(graph, watch))


def _agreed_view(
    model: nn.Module,
    meshes: tuple[Mesh, ...],
    example_inputs: ExampleInputs | None,
    hardware: str | Hardware | None,
    options: Options,
) -> Mesh:
    """The mesh that rank 0 finds best."""
    world.join(meshes[0].world_size)
    faults.watch()

    def choose() -> tuple[str, ...]:
        return (str(_best_view(model, meshes, example_inputs, hardware, options).plan.mesh),)

    (text,) = agreement.from_first_rank(choose)
    return Mesh.parse(text)


def _best_view(
    model: nn.Module,
    meshes: tuple[Mesh, ...],
    example_inputs: ExampleInputs | None,
    hardware: str | Hardware | None,
    options: Options,
) -> Compilation:
    """The best plan over all of these meshes."""
    compiler, graph = captured_by(model, meshes[0], example_inputs, hardware, options)
    made, refusals = {}, {}
    for mesh in meshes:
        try:
            made[mesh] = compiler.on(mesh).compile(graph)
        except InfeasibleError as error:
            refusals[mesh] = error
    if not made:
        raise refusals[meshes[-1]]
    best = min(made.values(), key=lambda compilation: compilation.plan.objective_s)
    compared = tuple(
        View(str(mesh), made[mesh].plan.objective_s if mesh in made else None) for mesh in meshes
    )
    return replace(best, plan=replace(best.plan, views=compared if len(meshes) > 1 else ()))


def captured_by(
    model: nn.Module,
    mesh: MeshLike,
    example_inputs: ExampleInputs | None,
    hardware: str | Hardware | None,
    options: Options,
) -> tuple[Compiler, Graph]:
    """A compiler that needs no processes and no weights, and the graph that it captured."""
    bare = without_weights(model, options.precision.compute)
    inputs = example_inputs if example_inputs is not None else offered_inputs(model)
    compiler = Compiler(bare, as_mesh(mesh), as_hardware(hardware), options)
    return compiler, compiler.graph(inputs)


def captured_graph(
    model: nn.Module, example_inputs: ExampleInputs | None, *, loss: Loss | None = None
) -> Graph:
    """The model's graph, captured as `plan` would without options."""
    inputs = example_inputs if example_inputs is not None else offered_inputs(model)
    return captured(without_weights(model, None), inputs, Options(loss=loss))
