"""The two calls that people make: `plan` decides, `parallelize` decides and builds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from autopar.capture import ExampleInputs
from autopar.compile.automatic import (
    StagesLike,
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
from autopar.pipeline.build.choose import PipelineOptions
from autopar.pipeline.build.pipeline_spec import PipelineSpec, asked_of_pipelines
from autopar.pipeline.build.staged import Staged
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from autopar.plans.record import View
from autopar.request.arrivals import arrived
from autopar.request.batch import Batch
from autopar.request.meta import without_weights
from autopar.request.optimizers import OptimizerLike
from autopar.request.options import Constraints, Loss, Options
from autopar.runtime import agreement, world
from autopar.runtime import failure_watchdog as faults
from autopar.runtime.inference import outside_inference
from autopar.runtime.parallel import Parallel
from autopar.runtime.pipeline.asynchronous import Asynchronous
from autopar.runtime.pipeline.module import Pipelined
from autopar.runtime.weights.initialise import Init
from autopar.runtime.weights.source import Weights
from autopar.sharding.sharding_problem import Compilation
from autopar.utils.progress import Watch, alone, unwatched
from cost_models.hardware import Hardware


@outside_inference
def parallelize(
    model: nn.Module,
    mesh: MeshLike,
    example_inputs: ExampleInputs | None = None,
    *,
    loss: Loss | None = None,
    optimizer: OptimizerLike = torch.optim.AdamW,
    precision: Any = None,
    memory_limit: float | str | None = None,
    hardware: str | Hardware | None = None,
    preset: str | None = None,
    constraints: Constraints | None = None,
    input: str = "global",
    outputs: Sequence[str] = (),
    recompute: str | None = None,
    database: str | Path | None = None,
    source: str | Path | None = None,
    replan: bool = True,
    weights: Weights | None = None,
    init: Init | None = None,
    stages: StagesLike = 1,
    schedule: str | None = None,
    microbatches: int | None = None,
    cuts: Sequence[str] = (),
    asynchronous: bool = False,
    allow_undivided: bool = False,
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
    - `memory_limit`: per device, in bytes or as ``"40GiB"``; None is the device's own, where the best
      plan would need more, and ``"none"`` permits a plan without stages to do so, as a preset may.
    - `hardware`: a profile's name or file; None is this machine.
    - `preset`, `constraints`: a known parallelism; patterns over names and their types, or tables of
      them below ``"pin"``, ``"forbid"`` and ``"prefer"`` (`autopar.request.constraints.from_user`), or
      a TOML file of these.
    - `database`: a file of operator times that `autopar profile` measured on this device.
    - `input`: with ``"local"`` every rank passes its own part of the batch.
    - `outputs`: names of outputs that the call returns beside the loss.
    - `recompute`: ``"none"``, ``"selective"`` or ``"full"`` says what every block (`autopar.ir.blocks`)
      does in the backward, while what is no block keeps what it made; None leaves it to the solver,
      which lets blocks forget only where the memory limit asks for it.
    - `source`: an emitted file that was edited by hand.
    - `replan`: whether batches of other shapes are planned when they come, or refused.
    - `weights`: a .safetensors file, a directory of them or of `torch.distributed.checkpoint`, or a
      state dict, read in slices.
    - `init`: makes what a model on the meta device lacks then, called as ``model.apply(init)`` would;
      without it the model's own ``_init_weights`` and ``reset_parameters``.
    - `stages`: a number, or the shapes of the meshes that hold them, such as ``[(2, 2), 4]``:
      consecutive ranks hold a stage each.  ``"auto"`` decides whether to cut at all, and what is not
      given of these.  `schedule` (see `autopar.pipeline.schedules`) says who does what when, with how
      many `microbatches`; `cuts` may name the operators that the later stages begin with.
    - `asynchronous`: permits schedules that update weights while microbatches are in flight, so that
      gradients are those of older weights; it is an `Asynchronous` then, which trains by
      ``train_steps(batches, optimizer)``.
    - `allow_undivided`: permits a preset, constraint or local input that divides nothing.

    Raises `InputError` and its kinds for what does not fit, `CaptureError` for a model that cannot
    be captured as it is, `InfeasibleError` where nothing meets the constraints.
    """
    model = arrived(model)
    options = Options.of(
        loss=loss, optimizer=optimizer, precision=precision, memory_limit=memory_limit,
        preset=preset, constraints=constraints, input=input, outputs=outputs, recompute=recompute,
        database=database, allow_undivided=allow_undivided,
    )  # fmt: skip
    if stages == 1 and len(meshes := meshes_of(mesh, options)) > 1:
        mesh = _agreed_view(model, meshes, example_inputs, hardware, options)
    device_mesh = world.device_mesh(mesh if isinstance(mesh, DeviceMesh) else as_mesh(mesh))
    faults.watch()
    compiler = Compiler(
        without_weights(model, options.precision.compute),
        as_mesh(device_mesh),
        as_hardware(hardware),
        options,
    )
    asked_of_pipelines(
        stages, schedule, microbatches, cuts, asynchronous,
        input=input, source=source, replan=replan,
    )  # fmt: skip
    if stages != 1:
        batch = _batch_of(model, example_inputs)
        found = agreed_stages(compiler, batch, stages, schedule, microbatches, cuts, asynchronous)
        if found is not None:
            return _pipelined(model, compiler, *found, batch, weights, init)
    return _whole(model, device_mesh, compiler, example_inputs, source, replan, weights, init)


def _whole(
    model: nn.Module,
    device_mesh: DeviceMesh,
    compiler: Compiler,
    example_inputs: ExampleInputs | None,
    source: str | Path | None,
    replan: bool,
    weights: Weights | None,
    init: Init | None,
) -> Parallel:
    """The model in one piece."""
    options = compiler.options
    example = example_inputs if example_inputs is not None else offered_inputs(model)
    if options.input == "global":
        agreement.assert_same_on_all_ranks("the example inputs", Batch.of(*as_call(example)).digest)
    program = compiler.program(example, edited=None if source is None else Path(source))
    return Parallel(
        model, device_mesh, program, compiler, example=Batch.of(*as_call(example)), replan=replan,
        local_input=options.input == "local", weights=weights, init=init,
    )  # fmt: skip


def _pipelined(
    model: nn.Module,
    compiler: Compiler,
    wanted: PipelineSpec,
    given: Staged | None,
    example: Mapping[str, Any],
    weights: Weights | None,
    init: Init | None,
) -> Pipelined:
    """The model as stages of a pipeline."""
    agreement.assert_same_on_all_ranks("the example inputs", Batch.of((), example).digest)
    staged = PipelineCompiler(compiler, wanted, given)
    built = staged.first(example)
    aliases = compiler.graph(example).aliases
    kind = Asynchronous if built.plan.schedule.asynchronous else Pipelined
    return kind(
        model, built, staged, example=Batch.of((), example), aliases=aliases, weights=weights, init=init,
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


def plan(
    model: nn.Module,
    mesh: MeshLike,
    example_inputs: ExampleInputs | None = None,
    *,
    hardware: str | Hardware | None = None,
    stages: StagesLike = 1,
    schedule: str | None = None,
    microbatches: int | None = None,
    cuts: Sequence[str] = (),
    asynchronous: bool = False,
    **options: Any,
) -> Plan | PipelinePlan:
    """What `parallelize` would decide, without processes and without weights.

    A number of devices for `mesh` is searched: every mesh of one or two axes that they make.
    The model may be on the meta device.  `options` are the keyword arguments of `parallelize`.
    """
    asked_of_pipelines(
        stages, schedule, microbatches, cuts, asynchronous, input=options.get("input", "global"),
        source=None, replan=True,
    )  # fmt: skip
    if stages == 1:
        return compile_model(model, mesh, example_inputs, hardware=hardware, **options).plan
    return compile_staged(
        model, mesh, example_inputs, hardware=hardware, stages=stages, schedule=schedule,
        microbatches=microbatches, cuts=cuts, asynchronous=asynchronous, **options,
    ).plan  # fmt: skip


def compile_staged(
    model: nn.Module,
    mesh: MeshLike,
    example_inputs: ExampleInputs | None = None,
    *,
    hardware: str | Hardware | None = None,
    stages: StagesLike = "auto",
    schedule: str | None = None,
    microbatches: int | None = None,
    cuts: Sequence[str] = (),
    asynchronous: bool = False,
    **options: Any,
) -> Staged | Compilation:
    """A pipeline with its stages' graphs and sources; where ``"auto"`` finds none better, a plan."""
    asked = Options.of(**options)
    if stages == "auto" and not isinstance(example_inputs or offered_inputs(model), Mapping):
        return compile_model(model, mesh, example_inputs, hardware=hardware, **options)
    inputs = _batch_of(model, example_inputs)
    bare = without_weights(model, asked.precision.compute)
    compiler = Compiler(bare, as_mesh(mesh), as_hardware(hardware), asked)
    if stages == "auto":
        refuse_asynchronous(asynchronous)
        found = chosen(compiler, inputs, PipelineOptions(schedule, microbatches, tuple(cuts)))
        best = found.staged or found.plain
        assert best is not None
        return best
    samples = samples_of(inputs)
    wanted = PipelineSpec.of(
        compiler.mesh, stages, schedule, microbatches, cuts, asynchronous, samples
    )
    return PipelineCompiler(compiler, wanted).decide(inputs)[0]


def compile_model(
    model: nn.Module,
    mesh: MeshLike,
    example_inputs: ExampleInputs | None = None,
    *,
    hardware: str | Hardware | None = None,
    **options: Any,
) -> Compilation:
    """`plan`, with every stage's output: graph, problem, plan and source."""
    chosen = Options.of(**options)
    return _best_view(model, meshes_of(mesh, chosen), example_inputs, hardware, chosen)


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
