"""The check that would catch us: parallel steps against the single process, on real processes.

Runs inside pool workers.  Reference values, captured graphs and saved tensors are made once per
worker and model.
"""

from __future__ import annotations

import copy
import logging
import os
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from autopar import rules
from autopar.capture import capture
from autopar.capture.cached import caches
from autopar.capture.saved import Known, saved
from autopar.compile.outputs import with_outputs
from autopar.cost.issued import traffic
from autopar.emit import emit
from autopar.ir.blocks import Recompute
from autopar.ir.graph import Graph, Saved
from autopar.ir.mesh import Mesh
from autopar.plans.decisions import ParameterPlan, total
from autopar.plans.plan import Plan
from autopar.plans.record import Padding
from autopar.request import presets
from autopar.request.batch import Batch
from autopar.request.constraints import from_user
from autopar.runtime.counting import CountTraffic
from autopar.runtime.parallel import Parallel
from autopar.runtime.program import load
from autopar.sharding.compile import compile_graph
from autopar.sharding.padding import padded, proposals
from autopar.sharding.sharding_problem import Settings, pose
from autopar.utils.cache import write
from cost_models.hardware import load as load_hardware
from tests import composite, fuzz, heavy, models
from tests.adapted import ADAPTED
from tests.architectures import ARCHITECTURES
from tests.capture.compare import eager_loss
from tests.custom.model import gated
from tests.derivatives import DERIVATIVES
from tests.empties import empties
from tests.frozen import FROZEN
from tests.kept_by_callers import between
from tests.mixtures import MIXTURES
from tests.moved import MOVED
from tests.nn_modules import MODULES
from tests.random_plans import random_plan
from tests.selections import SELECTIONS
from tests.uneven import UNEVEN
from tests.wide import Wide

STEPS = 3
"""Of the optimizer; losses of all, gradients of the last and weights after it are compared."""
RATES, MOMENTUM = (0.1, 1e-3), 0.9
"""Of learning; the second one for models that the first one blows up."""
DIVERGED = 1e3
"""Times the first loss."""
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
SINGLE = frozenset({"architectures.mixtral"})
"""What is compared in float32: a kernel of its library's knows no float64."""
CASES = {
    **models.ALL,
    **models.DEEP,
    **ADAPTED,
    **FROZEN,
    **UNEVEN,
    **MOVED,
    **DERIVATIVES,
    **SELECTIONS,
    **MODULES,
    **{f"architectures.{name}": ARCHITECTURES[name] for name in ARCHITECTURES},
    **{f"mixtures.{name}": MIXTURES[name] for name in MIXTURES},
    **heavy.ALL,
    **composite.ALL,
    "custom": gated,
    "between": between,
    "empties": empties,
}
"""Every model by name."""


def case_of(name: str) -> models.Case:
    """A case by name; ``fuzz.7`` is the grammar's model of seed 7."""
    family, _, seed = name.partition(".")
    return fuzz.model(int(seed)) if family == "fuzz" else CASES[name]()


@dataclass(frozen=True)
class Reference:
    """Some steps of the single process."""

    model: nn.Module
    batches: tuple[dict[str, Any], ...]
    graph: Graph
    saved: Mapping[str, Saved]
    losses: tuple[torch.Tensor, ...]
    gradients: dict[str, torch.Tensor | None]
    weights: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]
    tolerance: float
    rate: float
    """Of learning."""

    @property
    def inputs(self) -> dict[str, Any]:
        """The first batch, which is the example."""
        return self.batches[0]


@cache
def reference(name: str, steps: int = STEPS) -> Reference:
    """Capture, and steps of momentum, in float64 where every operator knows it."""
    single = name in SINGLE
    model, inputs, loss = case_of(name) if single else models.double(case_of(name))
    for each in caches(model):  # its tensors would be constants of this process's graph
        each.cache_clear()
    batches = tuple(batch_of(inputs, step) for step in range(steps))
    with nullcontext() if single else Wide():
        graph = with_outputs(capture(model, inputs, loss=loss), ())
        for rate in RATES:
            eager, losses = copy.deepcopy(model), []
            optimizer = sgd(eager, rate)
            for batch in batches:
                optimizer.zero_grad()
                value = eager_loss(eager, batch, loss)
                value.backward()
                optimizer.step()
                losses.append(value.detach())
            if abs(losses[-1]) <= DIVERGED * abs(losses[0]):
                break
    return Reference(
        model,
        batches,
        graph,
        saved(graph),
        tuple(losses),
        {key: p.grad for key, p in eager.named_parameters()},
        {key: p.detach() for key, p in eager.named_parameters()},
        {key: b.detach() for key, b in eager.named_buffers()},
        TOLERANCE[torch.float32 if single else torch.float64],
        rate,
    )


def sgd(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    """The optimizer of both sides; one with a state, and none that blows up rounding errors."""
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=MOMENTUM)


def batch_of(inputs: dict[str, Any], step: int) -> dict[str, Any]:
    """Another batch for every step: one more row is that before it, which any model can take."""
    return {key: _repeated(value, step) for key, value in inputs.items()}


def _repeated(value: Any, rows: int) -> Any:
    if not torch.is_tensor(value) or value.dim() == 0 or value.shape[0] <= rows:
        return value
    kept = value.shape[0] - rows
    return torch.cat([value[:kept], *[value[kept - 1 : kept]] * rows])


def forget() -> None:
    """Let go of the models that were checked so far."""
    reference.cache_clear()


@dataclass(frozen=True)
class Work:
    """A plan to be checked, as text that crosses to other processes."""

    name: str
    label: str
    plan: str
    source: str


def random_work(
    name: str, shape: tuple[int, ...], seed: int, recomputes: bool = False, alike: bool = False
) -> Work:
    """A random plan of a case."""
    case = reference(name)
    plan = random_plan(case.graph, Mesh.of(*shape), seed, case.saved, recomputes, alike=alike)
    return _work(name, f"random plan {seed} on {plan.mesh}", plan, case.graph)


def preset_work(
    name: str,
    shape: tuple[int, ...],
    preset: str | None,
    recompute: Recompute | None = None,
    regathers: bool = False,
) -> Work:
    """The plan of a preset, or the solver's own; `regathers`: activations are gathered again."""
    case = reference(name)
    mesh = Mesh.of(*shape)
    settings = Settings(
        optimizer="SGD",
        states=0.0,
        preset=preset or "",
        constraints=presets.load(preset, mesh) if preset else (),
        regather=presets.regathers(preset) if preset else None,
        recompute=recompute,
        regathers=regathers,
    )
    made = compile_graph(case.graph, mesh, load_hardware("cpu"), settings, case.saved)
    label = f"{preset or 'no preset'} on {mesh}, recompute {recompute}{', gathers' * regathers}"
    return Work(name, f"{name}, {label}", made.plan.to_json(), made.source)


def constrained_work(name: str, shape: tuple[int, ...], constraints: dict[str, Any]) -> Work:
    """The solver's plan where a person has pinned some types."""
    case, mesh = reference(name), Mesh.of(*shape)
    settings = Settings(optimizer="SGD", states=0.0, constraints=from_user(dict(constraints), mesh))
    made = compile_graph(case.graph, mesh, load_hardware("cpu"), settings, case.saved)
    return Work(name, f"{name}, {constraints} on {mesh}", made.plan.to_json(), made.source)


def padded_work(
    name: str,
    shape: tuple[int, ...],
    to: dict[int, int],
    *,
    seed: int | None = None,
    constraints: dict[str, str] | None = None,
) -> Work:
    """A plan of a case with these sizes padded: a random one, or the solver's."""
    case, mesh = reference(name), Mesh.of(*shape)
    graph = padded(case.graph, paddings(case.graph, mesh, to))
    label = f"{to} on {mesh}, seed {seed}, {constraints}"
    if seed is not None:
        plan = random_plan(graph, mesh, seed, saved(graph))
    else:
        asked = from_user(dict(constraints or {}), mesh)
        settings = Settings(optimizer="SGD", states=0.0, constraints=asked)
        posed = pose(graph, mesh, load_hardware("cpu"), settings, saved(graph))
        plan = posed.plan(posed.ready.solve())
    return _work(name, label, plan, graph)


def paddings(graph: Graph, mesh: Mesh, to: dict[int, int]) -> tuple[Padding, ...]:
    """What is proposed of these sizes; each must be there."""
    found = {
        (proposal.size, choice[0].pad.to): choice
        for proposal in proposals(graph, mesh, inputs=True)
        for choice in proposal.choices
    }
    return tuple(padding for size, wanted in to.items() for padding in found[size, wanted])


def _work(name: str, label: str, plan: Plan, graph: Graph) -> Work:
    return Work(
        name, f"{name}, {label}", plan.to_json(), emit(plan, graph, rules.localize, saved(graph))
    )


def check_all(works: list[Work]) -> float:
    """Check plans one after the other; the worst error, or an exception that says which plan."""
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)
    worst = 0.0
    for work in works:
        try:
            worst = max(worst, check_plan(work))
        except Exception as error:
            error.add_note(work.label)
            raise
    return worst


@cache
def device_mesh(mesh: Mesh) -> DeviceMesh:
    """One device mesh per shape: torch caches layouts by meshes that it takes for equal."""
    return init_device_mesh("cpu", mesh.sizes, mesh_dim_names=mesh.names)


def parallel_of(work: Work) -> Parallel:
    """The model of a case under a plan, on the default group."""
    case = reference(work.name)
    plan = Plan.from_json(work.plan)
    folder = tempfile.mkdtemp(prefix="emitted_", dir=os.environ.get("AUTOPAR_CACHE"))
    path = Path(folder) / "emitted.py"
    graph = padded(case.graph, plan.padding)
    program = load(plan, graph, work.source, write(work.source, path))
    mesh = device_mesh(plan.mesh)

    return Parallel(case.model, mesh, program, NoOther(), example=Batch.of((), case.inputs))


class NoOther:
    """Plans nothing: tests of one plan run one batch."""

    def outside(self) -> tuple[()]:
        """Nothing changes there."""
        return ()

    def follow(self, *_: Any) -> None:
        """No attribute is read again."""

    def captured_digest(self, *_: Any) -> str:
        raise AssertionError("ranks read the same")

    def for_batch(self, *_: Any) -> Any:
        raise AssertionError("no other batch is expected")

    def for_microbatches(self, *_: Any) -> Any:
        raise AssertionError("no microbatches are expected")


def check_plan(work: Work) -> float:
    """Losses, gradients, weights, buffers, local sizes and traffic are what they should be."""
    case = reference(work.name)
    parallel = parallel_of(work)
    plan = parallel.plan
    check_local_sizes(parallel, plan)
    optimizer, worst = sgd(parallel, case.rate), 0.0
    with CountTraffic(parallel.device_mesh) as counted:
        for batch, want in zip(case.batches, case.losses, strict=True):
            optimizer.zero_grad()
            counted.direction = "forward"
            loss = parallel(**batch)
            counted.direction = "backward"
            loss.backward()
            worst = max(worst, close(loss.detach(), want, "loss", tolerance=case.tolerance))
            optimizer.step()
    worst = max(worst, check_gradients(parallel, case))
    check_traffic(parallel, plan, counted, len(case.batches))
    worst = max(worst, check_weights(parallel, case))
    for key, buffer in parallel.named_buffers():
        scale = beside(key, case.buffers) if key.endswith("running_mean") else 0.0
        worst = max(worst, close(buffer, case.buffers[key], f"buffer {key}", scale, case.tolerance))
    return worst


def beside(key: str, buffers: dict[str, torch.Tensor]) -> float:
    """The largest of a module's floating buffers: a mean that is mere rounding is small beside 1."""
    module = key.rpartition(".")[0]
    mine = (b for k, b in buffers.items() if k.rpartition(".")[0] == module)
    return max((float(b.abs().max()) for b in mine if b.is_floating_point()), default=0.0)


def check_local_sizes(parallel: Parallel, plan: Plan) -> None:
    """Every parameter rests in exactly the shard that the plan says."""
    for key, parameter in parallel.named_parameters():
        assert isinstance(parameter, DTensor)
        if key in plan.parameter:
            entry = plan.parameter[key]
            if entry.pads:
                check_uneven_size(parameter, entry)
                continue
            want = entry.stored.local_shape(tuple(parameter.shape), plan.mesh)
            assert tuple(parameter.to_local().shape) == want, key


def check_uneven_size(parameter: DTensor, entry: ParameterPlan) -> None:
    """At rest there is no padding: the shard is what DTensor itself would cut of the true shape."""
    assert tuple(parameter.shape) == entry.shape
    whole = torch.empty(entry.shape, device="meta")
    coordinate = parameter.device_mesh.get_coordinate()
    assert coordinate is not None
    for axis, kind in enumerate(parameter.placements):
        if isinstance(kind, Shard):
            parts = whole.chunk(parameter.device_mesh.size(axis), kind.dim)
            empty = whole.narrow(kind.dim, 0, 0)
            whole = parts[coordinate[axis]] if coordinate[axis] < len(parts) else empty
        elif not isinstance(kind, Replicate):
            sizes = list(whole.shape)
            sizes[kind.dim] //= parameter.device_mesh.size(axis)  # type: ignore[attr-defined]
            whole = whole.new_empty(sizes)
    assert parameter.to_local().shape == whole.shape


def largest(tensor: torch.Tensor) -> float:
    """The largest absolute value; 0 of a tensor without elements."""
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def check_gradients(parallel: Parallel, case: Reference) -> float:
    """Each gradient against the single process, relative to the largest entry in the model."""
    worst, wanted = 0.0, case.gradients
    scale = max(largest(g) for g in wanted.values() if g is not None)
    for key, parameter in parallel.named_parameters():
        gradient, want = parameter.grad, wanted[key]
        if want is None:
            assert gradient is None, f"{key} has a gradient that the single process lacks"
            continue
        assert isinstance(gradient, DTensor), f"{key} has no gradient"
        whole = gradient.full_tensor()
        worst = max(worst, close(whole, want, f"gradient of {key}", scale, case.tolerance))
    return worst


def check_weights(parallel: Parallel, case: Reference) -> float:
    """Weights after the steps, relative to the largest update."""
    worst = 0.0
    before = {key: p.detach() for key, p in case.model.named_parameters()}
    update = max(largest(case.weights[k] - before[k]) for k in before)
    for key, value in parallel.full_state_dict().items():
        if key in case.weights:
            difference = largest(value - case.weights[key])
            assert difference <= case.tolerance * update, f"weight {key}: {difference} of {update}"
            worst = max(worst, difference / update if update else 0.0)
    return worst


_KNOWN: Known = {}


def check_traffic(parallel: Parallel, plan: Plan, counted: CountTraffic, steps: int = 1) -> None:
    """Bytes by axis, kind and direction equal the prediction, in every step the same.

    On `tests.strict` nothing is counted: torch's dispatcher does not see what a Python group does.
    """
    if dist.get_backend() == "strict":
        return
    predicted = traffic(plan, parallel.graph, saved(parallel.graph, known=_KNOWN))
    want: Counter[tuple[str, str, str]] = Counter()
    for (axis, kind, direction), nbytes in total(predicted.microbatch).items():
        want[plan.mesh.names[axis], kind, direction] += nbytes * steps
    for (axis, kind, direction), nbytes in total(predicted.step).items():
        want[plan.mesh.names[axis], kind, direction] += nbytes * steps
    got = most_of_any_rank(counted.nbytes)
    for axis in _dispatching(plan):
        for key in [key for key in got if key[:2] == (axis, "all_to_all")]:
            got[key] = mean_of_ranks(counted.sent[key])
    wrong = {k: (got[k], want[k]) for k in want | got if got[k] != want[k]}
    assert not wrong, f"(counted, predicted) bytes: {wrong}"


def _dispatching(plan: Plan) -> set[str]:
    """The axes on which tokens travel to experts: as many rows as are routed leave each rank."""
    return {
        plan.mesh.names[axis]
        for choice in plan.choices
        for axis, variant in enumerate(choice.sharding.variants)
        if variant == "expert_dispatch"
    }


def mean_of_ranks(mine: float) -> float:
    """Every row leaves one rank: whatever the routing, the mean over ranks is the balanced number."""
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    return sum(every) / len(every)


def most_of_any_rank(mine: Counter[tuple[str, str, str]]) -> Counter[tuple[str, str, str]]:
    """Where parts are uneven ranks move unequal numbers of bytes; the prediction is of the most."""
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    largest: Counter[tuple[str, str, str]] = Counter()
    for one in every:
        largest |= one
    return largest


@torch.no_grad()
def close(
    got: torch.Tensor,
    want: torch.Tensor | None,
    what: str,
    scale: float = 0.0,
    tolerance: float = TOLERANCE[torch.float64],
) -> float:
    """Equal up to the tolerance, relative to the largest entry; how far from equal."""
    assert want is not None and got.shape == want.shape, f"{what}: {got.shape}"
    size = max(largest(want.double()), scale, 1e-30)
    difference = largest(got.double() - want.double())
    assert difference <= tolerance * size, f"{what}: {difference} of {size}"
    return difference / size
