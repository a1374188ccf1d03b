"""Compares the solver's plan with the presets' plans and with plans given by the user.

The model is captured once.  Each preset is solved separately, so its plan is the best of its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import nn

from autopar.compile.automatic import source_of
from autopar.compile.compiler import Compiler
from autopar.compile.given import MeshLike, as_hardware, as_mesh, offered_inputs
from autopar.compile.planned import captured_for
from autopar.cost.timed import timing_of
from autopar.errors import AutoparError, InfeasibleError, InputError, PlanError
from autopar.ir.graph import Graph
from autopar.plans.differences import differences
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from autopar.request import presets
from autopar.request.meta import without_weights
from autopar.request.options import Options, Precision
from autopar.sharding.asked import posed_for
from autopar.sharding.sharding_problem import device_memory
from autopar.utils.messages import argument
from autopar.utils.progress import Watch, alone, unwatched
from autopar.utils.shown import Shown
from autopar.verify.recomputed import RecomputedFigures
from cost_models.hardware import Hardware, digest
from cost_models.measured import Times

SOLVER = "autopar"
"""Name of the solver's own plan in a comparison."""


@dataclass(frozen=True)
class Contender(Shown):
    """One plan to train the model on these devices, or the reason why there is none (`plan` is None)."""

    name: str
    plan: Plan | PipelinePlan | None
    why: str = ""


@dataclass(frozen=True)
class Comparison(Shown):
    """All contenders in order; `limit_nbytes` is the memory limit of a device."""

    ways: tuple[Contender, ...]
    limit_nbytes: float

    def __iter__(self) -> Iterator[Contender]:
        return iter(self.ways)

    def __len__(self) -> int:
        return len(self.ways)


@dataclass(frozen=True)
class _Physics:
    """The hardware profile and measured times by which all contenders are priced."""

    hardware: Hardware
    times: Times | None

    def priced(self, plan: Plan | PipelinePlan) -> bool:
        """Return whether a plan was priced by these."""
        same = plan.hardware_digest == digest(self.hardware)
        return same and plan.times == timing_of(self.times)


def _priced_by(plan: Plan | PipelinePlan) -> str:
    return f"{plan.hardware}, operators {plan.times or 'modelled'}"


def compare(
    model: nn.Module,
    mesh: MeshLike,
    example_inputs: Any = None,
    *,
    hardware: str | Hardware | None = None,
    plans: Mapping[str, Plan | PipelinePlan] | None = None,
    names: Sequence[str] | None = None,
    watch: Watch = unwatched,
    **options: Any,
) -> Comparison:
    """Compare the solver's plan, the presets' plans (`names`: only these), and `plans` by name.

    A plan that was priced for other hardware, or by other times, is priced again; a pipeline's plan
    cannot be.  `watch` reports progress.  Raises `PlanError` for a plan of another model or batch.
    """
    if options.get("preset"):
        raise InputError(f"compare plans every preset: leave {argument('preset')} out.")
    asked, devices = Options.of(**options), as_mesh(mesh)
    profile, inputs = as_hardware(hardware), example_inputs
    if inputs is None:
        inputs = offered_inputs(model)
    limit = asked.memory_limit
    if limit is None:
        limit = device_memory(devices, profile)
    first = Compiler(without_weights(model, asked.precision.compute), devices, profile, asked)
    graph = alone(partial(first.graph, inputs), watch, "capturing the model")
    physics = _Physics(profile, first.times)
    chosen = (None, *(presets.names() if names is None else names))
    given = plans or {}

    def ways() -> Iterator[Contender]:
        for name in chosen:
            compiler = first.with_options(replace(asked, preset=name))
            yield _planned(compiler, graph, name or SOLVER)
        for name, plan in given.items():
            if isinstance(plan, PipelinePlan):
                yield _pipeline(name, plan, model, inputs, asked.loss, physics)
            else:
                yield _given(name, plan, model, inputs, asked.loss, physics)

    return Comparison(tuple(watch(ways(), len(chosen) + len(given), "planning")), limit)


def _planned(compiler: Compiler, graph: Graph, name: str) -> Contender:
    try:
        return Contender(name, compiler.compile(graph).plan)
    except (InfeasibleError, InputError) as error:
        return Contender(name, None, str(error))


def _given(
    name: str,
    plan: Plan,
    model: nn.Module,
    inputs: Any,
    loss: Callable[..., Any] | None,
    physics: _Physics,
) -> Contender:
    """Return a user's plan as a contender, priced again if necessary."""
    graph = captured_for(plan, model, inputs, loss)
    _refuse_stranger(name, differences(plan, graph))
    plan.check(graph)
    if physics.priced(plan):
        return Contender(name, plan)
    profile = physics.hardware
    try:
        priced = RecomputedFigures(plan, posed_for(plan, graph, profile, physics.times)).plan
    except (AutoparError, ValueError, KeyError) as error:
        return Contender(name, None, f"cannot be priced for {profile.device.name}: {error}")
    return Contender(name, priced, f"priced again: it was made for {_priced_by(plan)}")


def _pipeline(
    name: str,
    plan: PipelinePlan,
    model: nn.Module,
    inputs: Any,
    loss: Callable[..., Any] | None,
    physics: _Physics,
) -> Contender:
    precision = Precision.parse(plan.stages[0].plan.precision)
    bare = without_weights(model, precision.compute)
    options = Options(loss=loss, precision=precision)
    if not isinstance(inputs, Mapping):
        raise InputError(f"{name} is the plan of a pipeline: pass example inputs as a dict.")
    source = source_of(Compiler(bare, plan.mesh, physics.hardware, options), inputs)
    if source.parted(plan.microbatches).digest != plan.graph_digest:
        _refuse_stranger(name, ("other sizes, batch, version or code",))
    if plan.prediction is None or not physics.priced(plan):
        return Contender(
            name, None,
            f"it is the plan of a pipeline that was priced for {_priced_by(plan)}: plan it again "
            "with the same --hardware and --database",
        )  # fmt: skip
    return Contender(name, plan)


def _refuse_stranger(name: str, differs: Sequence[str]) -> None:
    if differs:
        raise PlanError(
            f"{name} is not a plan of this model and batch:\n- " + "\n- ".join(differs)
            + "\nMake a new one with `autopar plan`."
        )  # fmt: skip
