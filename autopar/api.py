"""The two calls that people make: `plan` decides, `parallelize` decides and builds."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from autopar import presets
from autopar.batch import Batch, mapped
from autopar.capture import ExampleInputs, capture
from autopar.capture.saved import saved
from autopar.compile import (
    Compilation,
    Posed,
    Settings,
    arriving,
    batch_form,
    compile_graph,
    frontier,
    pose,
)
from autopar.constraints import Constraint, from_user
from autopar.errors import InputError, MeshError, SourceError
from autopar.graph import Graph
from autopar.mesh import DEFAULT_NAMES, Mesh
from autopar.meta import without_weights
from autopar.microbatch import part
from autopar.options import Constraints, Loss, Options, Precision
from autopar.placement import Sharding
from autopar.plan import Plan
from autopar.pricing.parameters import Storage
from autopar.runtime import agreement, faults, world
from autopar.runtime.parallel import Parallel
from autopar.runtime.program import Program, cache_directory, load, write
from cost_models.hardware import Hardware, detect
from cost_models.hardware import load as load_hardware

MeshLike = Mesh | DeviceMesh | Sequence[int] | int | str


def parallelize(
    model: nn.Module,
    mesh: MeshLike,
    example_inputs: ExampleInputs | None = None,
    *,
    loss: Loss | None = None,
    optimizer: type[torch.optim.Optimizer] | str = torch.optim.AdamW,
    precision: Any = None,
    memory_limit: float | str | None = None,
    hardware: str | Hardware | None = None,
    preset: str | None = None,
    constraints: Constraints | None = None,
    input: str = "global",
    outputs: Sequence[str] = (),
    recompute: str | None = None,
    source: str | Path | None = None,
    replan: bool = True,
) -> Parallel:
    """The model as a distributed training step; call it on every rank, under ``torchrun``.

    `example_inputs` hold one global batch, as a dict of keyword arguments (targets of `loss` among
    them) or a tuple; left out where the model brings its own.  Rank 0 plans and its weights count.
    `memory_limit` is per device, in bytes or as ``"40GiB"``.  `constraints` map patterns over names
    to types (see `autopar.constraints`), `preset` names a file of them.  `recompute` ("none",
    "selective", "full") says what every block does in the backward; None leaves it to the solver,
    which lets blocks forget what they made only where the memory limit asks for it.  With
    ``input="local"`` every rank passes its own part of the batch.  `source` is an emitted file that
    was edited by hand.  Batches of other shapes are planned when they come, or refused with
    ``replan=False``.

    Raises `InputError` and its kinds for what does not fit, `CaptureError` for a model that cannot
    be captured as it is, `InfeasibleError` where nothing meets the constraints.
    """
    options = Options.of(
        loss=loss, optimizer=optimizer, precision=precision, memory_limit=memory_limit,
        preset=preset, constraints=constraints, input=input, outputs=outputs, recompute=recompute,
    )  # fmt: skip
    device_mesh = world.device_mesh(mesh if isinstance(mesh, DeviceMesh) else as_mesh(mesh))
    faults.watch()
    compiler = Compiler(
        without_weights(model, options.precision.compute),
        as_mesh(device_mesh),
        as_hardware(hardware),
        options,
    )
    example = example_inputs if example_inputs is not None else offered_inputs(model)
    if options.input == "global":
        agreement.same("the example inputs", Batch.of(*as_call(example)).digest)
    edited = None if source is None else Path(source)
    program = compiler.program(example, edited=edited)
    return Parallel(
        model,
        device_mesh,
        program,
        compiler,
        example=Batch.of(*as_call(example)),
        replan=replan,
        local_input=options.input == "local",
    )


def plan(
    model: nn.Module,
    mesh: MeshLike,
    example_inputs: ExampleInputs | None = None,
    *,
    hardware: str | Hardware | None = None,
    **options: Any,
) -> Plan:
    """What `parallelize` would decide, without processes and without weights.

    The model may be on the meta device.  `options` are the keyword arguments of `parallelize`.
    """
    return compile_model(model, mesh, example_inputs, hardware=hardware, **options).plan


def compile_model(
    model: nn.Module,
    mesh: MeshLike,
    example_inputs: ExampleInputs | None = None,
    *,
    hardware: str | Hardware | None = None,
    **options: Any,
) -> Compilation:
    """`plan`, with every stage's output: graph, problem, plan and source."""
    compiler, graph = _captured_by(model, mesh, example_inputs, hardware, Options.of(**options))
    return compiler.compile(graph)


def plan_frontier(
    model: nn.Module,
    mesh: MeshLike,
    example_inputs: ExampleInputs | None = None,
    *,
    hardware: str | Hardware | None = None,
    **options: Any,
) -> tuple[Plan, ...]:
    """Plans from the fastest to the smallest, each the fastest within its memory.

    They are the corners of the lower convex hull of (bytes, seconds) of all plans.
    """
    compiler, graph = _captured_by(model, mesh, example_inputs, hardware, Options.of(**options))
    return tuple(made.plan for made in compiler.frontier(graph))


def _captured_by(
    model: nn.Module,
    mesh: MeshLike,
    example_inputs: ExampleInputs | None,
    hardware: str | Hardware | None,
    options: Options,
) -> tuple[Compiler, Graph]:
    """A compiler that needs no processes and no weights, and the graph that it captured."""
    inputs = example_inputs if example_inputs is not None else offered_inputs(model)
    bare = without_weights(model, options.precision.compute)
    compiler = Compiler(bare, as_mesh(mesh), as_hardware(hardware), options)
    return compiler, compiler.graph(inputs)


def captured_for(
    plan: Plan, model: nn.Module, example_inputs: ExampleInputs | None, loss: Loss | None
) -> Graph:
    """The model's graph, captured the way it was when the plan was made."""
    options = replace(Options(loss=loss), precision=Precision.parse(plan.precision))
    inputs = example_inputs if example_inputs is not None else offered_inputs(model)
    return _captured(without_weights(model, options.precision.compute), inputs, options)


def posed_for(plan: Plan, graph: Graph, hardware: Hardware) -> Posed:
    """The problem that a plan answers."""
    asked = plan.asked
    settings = Settings(
        optimizer=plan.optimizer,
        states=asked.states,
        memory_limit=asked.memory_limit,
        preset=plan.preset,
        constraints=(*_preset(plan.preset, plan.mesh), *asked.constraints),
        regather=presets.regathers(plan.preset) if plan.preset else None,
        precision=plan.precision,
        batch=asked.batch,
        storage=_storage(plan if asked.kept else None),
        first=not asked.kept,
    )
    return pose(graph, plan.mesh, hardware, settings, saved(graph), asked.recompute)


def _captured(
    model: nn.Module, inputs: ExampleInputs, options: Options, training: bool = True
) -> Graph:
    found = capture(
        model,
        _cast(inputs, options.precision.compute),
        loss=options.loss,
        train=training,
        autocast=options.precision.autocast,
    )
    # Evaluation moves the same tensors; only their letters (I, R) tell shards from copies.
    return with_outputs(found if training else found.with_gradients(), options.outputs)


class Compiler:
    """Everything that stays the same while batches of different shapes are compiled."""

    def __init__(self, model: nn.Module, mesh: Mesh, hardware: Hardware, options: Options) -> None:
        self._model, self._mesh, self._hardware, self._options = model, mesh, hardware, options
        self._first: Plan | None = None
        self._batch: Sharding | None = None

    def graph(self, inputs: ExampleInputs, training: bool = True) -> Graph:
        """The captured forward pass, with the outputs that were asked for."""
        return _captured(self._model, inputs, self._options, training)

    def compile(self, graph: Graph) -> Compilation:
        """Candidates, prices, solution, plan and source of a captured graph.

        Where every rank brings its own part, the batch arrives divided the way the best plan for a
        whole batch divides it.
        """
        if self._options.input == "global":
            return self._compile(graph, None)
        return self._compile(
            graph, self._batch or batch_form(self._compile(graph, None).plan, graph)
        )

    def _compile(self, graph: Graph, batch: Sharding | None) -> Compilation:
        return compile_graph(graph, self._mesh, self._hardware, self._settings(batch), saved(graph))

    def _settings(self, batch: Sharding | None) -> Settings:
        options = self._options
        chosen = (*_preset(options.preset, self._mesh), *_constraints(options, self._mesh))
        return Settings(
            optimizer=options.optimizer,
            states=options.states,
            memory_limit=options.memory_limit,
            preset=options.preset or "",
            constraints=chosen,
            regather=presets.regathers(options.preset) if options.preset else None,
            precision=str(options.precision),
            batch=batch,
            storage=_storage(self._first),
            recompute=options.recompute,
            first=self._first is None,
        )

    def frontier(self, graph: Graph) -> tuple[Compilation, ...]:
        """The plans of the time-memory curve, from the fastest to the smallest."""
        return frontier(graph, self._mesh, self._hardware, self._settings(None), saved(graph))

    def program(
        self, inputs: ExampleInputs, training: bool = True, edited: Path | None = None
    ) -> Program:
        """Rank 0's plan and source, loaded on every rank."""
        return self.program_of(self.graph(inputs, training), edited)

    def program_of(self, graph: Graph, edited: Path | None = None) -> Program:
        """The program of a captured graph."""
        options = self._options
        agreement.same(
            "the model, the mesh or the options", f"{graph.digest} {self._mesh} {options}"
        )
        plan_text, source = agreement.from_first_rank(lambda: self._decide(graph, edited))
        plan = Plan.from_json(plan_text, "the plan of rank 0")
        plan.check(graph)
        if self._first is None:
            self._first = plan
            self._batch = arriving(plan, graph)
        path = edited or cache_directory() / f"{graph.name}_{plan.digest}.py"
        if edited is None:
            write(source, path)
        return load(plan, graph, source, path)

    def _decide(self, graph: Graph, edited: Path | None) -> tuple[str, str]:
        made = self.compile(graph)
        return made.plan.to_json(), made.source if edited is None else _read(edited)

    def for_batch(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], training: bool
    ) -> Program:
        """The program of a batch that no earlier one serves."""
        if args and kwargs:
            raise InputError(
                "Pass the batch as keyword arguments, or as positional ones, not both."
            )
        return self.program(kwargs or args, training)

    def for_microbatches(
        self, whole: Mapping[str, Any], microbatch: Mapping[str, Any], pieces: int
    ) -> tuple[Program | None, Program]:
        """Programs that count the whole batch's denominators, and that run one microbatch."""
        parted = part(self.graph(whole), self.graph(microbatch), pieces)
        counts = None if parted.counts is None else self.program_of(parted.counts)
        return counts, self.program_of(parted.microbatch)


def as_mesh(mesh: MeshLike) -> Mesh:
    """Read what a user may call a mesh: a Mesh, a DeviceMesh, ``(2, 2)``, ``4`` or ``"2x2"``."""
    if isinstance(mesh, Mesh):
        return mesh
    if isinstance(mesh, str):
        return Mesh.parse(mesh)
    if isinstance(mesh, DeviceMesh):
        names = mesh.mesh_dim_names or DEFAULT_NAMES[: mesh.ndim]
        return Mesh.of(*mesh.shape, names=tuple(names))
    sizes = (mesh,) if isinstance(mesh, int) else tuple(mesh)
    if not all(isinstance(size, int) for size in sizes):
        raise MeshError(f"A mesh is a Mesh, a DeviceMesh or a shape such as (2, 2), not {mesh!r}.")
    return Mesh.of(*sizes)


def as_hardware(hardware: str | Hardware | None) -> Hardware:
    """A profile by name or path; None asks the machine what it is."""
    if isinstance(hardware, Hardware):
        return hardware
    return load_hardware(hardware if hardware is not None else detect())


def offered_inputs(model: nn.Module) -> ExampleInputs:
    """The example inputs that a model brings along, as Hugging Face and Lightning models may."""
    for attribute in ("example_input_array", "dummy_inputs"):
        found = getattr(model, attribute, None)
        if isinstance(found, torch.Tensor):
            return (found,)
        if isinstance(found, (tuple, dict)):
            return found
    arguments = [p for p in inspect.signature(model.forward).parameters if p != "kwargs"]
    raise InputError(
        f"{type(model).__name__} brings no example inputs. Pass example_inputs= with one global "
        f"batch: a dict such as {{{', '.join(f'{a!r}: ...' for a in arguments[:2])}}} or a tuple."
    )


def as_call(inputs: ExampleInputs) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Example inputs as positional and keyword arguments."""
    if isinstance(inputs, torch.Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping):
        return (), inputs
    return tuple(inputs), {}


def with_outputs(graph: Graph, wanted: Sequence[str]) -> Graph:
    """The graph with only the outputs that were asked for (all of them where there is no loss)."""
    available = dict(graph.outputs)
    for name in wanted:
        if name not in available:
            raise InputError(f"{graph.name} has no output {name!r}; it has {', '.join(available)}.")
    if graph.loss is None and not wanted:
        return graph
    kept = tuple((path, tensor) for path, tensor in graph.outputs if path in wanted)
    return replace(graph, outputs=kept)


def _cast(inputs: ExampleInputs, dtype: torch.dtype | None) -> ExampleInputs:
    """Floating tensors of the batch in the compute dtype."""
    if dtype is None:
        return inputs

    def cast(value: Any, _: str) -> Any:
        floating = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.to(dtype) if floating else value

    changed: ExampleInputs = mapped(inputs, "", cast)
    return changed


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"Cannot read source={str(path)!r}: {error}.") from None


def _storage(first: Plan | None) -> Mapping[str, Storage]:
    """Later programs keep the parameters where the first plan put them."""
    if first is None:
        return {}
    return {p.name: Storage(p.stored, p.leaf, False) for p in first.parameters}


def _constraints(options: Options, mesh: Mesh) -> tuple[Constraint, ...]:
    given = options.constraints
    return given if isinstance(given, tuple) else from_user(given, mesh)


def _preset(name: str | None, mesh: Mesh) -> tuple[Constraint, ...]:
    return presets.load(name, mesh) if name else ()
