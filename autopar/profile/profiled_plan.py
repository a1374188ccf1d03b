"""Selects the calls to time, and alternates between planning and measuring.

The first plan is chosen by the roofline.  Once its operators are timed, another plan with untimed
operators may look better.  Planning is therefore repeated until everything in the best plan is timed,
with a limit on the rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from autopar.compile.compiler import Compiler
from autopar.cost.operators import call_of
from autopar.errors import AutoparError
from autopar.ir.graph import Graph
from autopar.ir.mesh import Mesh
from autopar.pipeline.build.staged import Staged
from autopar.plans.decisions import OpSharding
from autopar.plans.plan import Plan
from autopar.profile.measure import Refused, measure
from autopar.request import presets
from autopar.request.options import Options
from autopar.rules import LocalCall, local_call
from autopar.sharding.sharding_problem import Compilation
from cost_models.measured import Call, Database, Setting, Timed
from cost_models.measured.timer import Effort

AGAIN = 4
"""Maximum number of planning rounds until all calls of the best plan are timed."""
AT_ONCE = 128
"""Calls after which times are written to the database; an interrupted run loses at most these."""


Pairs = dict[str, tuple[LocalCall, Call]]
Made = Compilation | Staged


@dataclass(frozen=True)
class ProfiledPlan:
    """Result of profiling a model: the best plan now, all times that it needs, and calls that failed."""

    made: Made
    timed: tuple[Timed, ...]
    """Times measured in this run."""
    known: int
    """Number of calls that were already in the database."""
    refused: tuple[Refused, ...]


@dataclass(frozen=True)
class Timing:
    """Database, setting and effort of the measurement; `again`: repeat known times, too.

    `during` wraps planning but not measuring, because a progress display would disturb the times.
    """

    database: Path
    setting: Setting
    again: bool = False
    effort: Effort | None = None
    imports: tuple[str, ...] = ()
    tell: Callable[[str], None] = lambda _: None
    during: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext()


def profile(
    compiler: Compiler, graph: Graph, timing: Timing, *, every: bool = False
) -> ProfiledPlan:
    """Time the calls of the best plan and the presets on a rank; `every`: those of all candidates.

    Times that the database has for this setting are not measured again, unless asked for.
    """
    free = replace(compiler.options, planning=replace(compiler.options.planning, database=None))
    with timing.during("planning"):
        made = compiler.with_options(free).compile(graph)
        pairs = _of_every(made) if every else _of_plans(made, *_presets(compiler, free, graph))
    timed = compiler.with_options(
        replace(free, planning=replace(free.planning, database=timing.database))
    )
    return _until_known(pairs, lambda: timed.compile(graph), timing)


def profile_stages(plan: Callable[[Path | None], Made], timing: Timing) -> ProfiledPlan:
    """Time the calls of a pipeline: those of every stage's plan for one microbatch.

    `plan` makes a plan with the times of a database, or with the roofline's if given None.
    """
    with timing.during("planning"):
        pairs = _of_plans(plan(None))
    return _until_known(pairs, lambda: plan(timing.database), timing)


def _until_known(pairs: Pairs, make: Callable[[], Made], timing: Timing) -> ProfiledPlan:
    """Time the calls and plan with the times, repeatedly while the plan contains untimed calls."""
    store, setting = Database(timing.database), timing.setting
    before = set(store.read(setting)) if timing.database.is_file() else set()
    done: set[str] = set() if timing.again else set(before)
    timed: list[Timed] = []
    refused: list[Refused] = []
    for _ in range(AGAIN):
        left = [pair for text, pair in pairs.items() if text not in done]
        if left:
            timing.tell(f"timing {len(left)} distinct calls on {setting} ...")
        for start in range(0, len(left), AT_ONCE):
            some = left[start : start + AT_ONCE]
            found, failed = measure(some, setting, timing.effort, timing.imports)
            store.write(setting, found)
            timed += found
            refused += failed
            done |= {call.text for _, call in some}
        with timing.during("planning with these times"):
            made = make()
        pairs = _of_plans(made)
        if done.issuperset(pairs):
            break
    return ProfiledPlan(made, tuple(timed), len(before & set(pairs)), tuple(refused))


def _presets(compiler: Compiler, free: Options, graph: Graph) -> Iterator[Compilation]:
    """Yield the plans of the presets that apply to this mesh and model."""
    if compiler.options.preset or compiler.options.constraints:
        return
    for name in presets.names():
        try:
            yield compiler.with_options(replace(free, preset=name)).compile(graph)
        except (AutoparError, ValueError):
            continue


def _of_plans(*plans: Made) -> Pairs:
    """Return the calls of the plans on one rank; of a pipeline, on one rank of each stage."""
    pairs: Pairs = {}
    for plan, graph in (each for made in plans for each in _parts(made)):
        choices = ((c.node, c.sharding) for c in plan.choices)
        pairs |= _pairs(choices, graph, plan.mesh)
    return pairs


def _parts(made: Made) -> Iterator[tuple[Plan, Graph]]:
    """Yield the plans of single graphs: the plan itself, or those of the stages."""
    if isinstance(made, Staged):
        for each in made.plan.stages:
            yield each.plan, made.stages.graphs[each.stage]
    else:
        yield made.plan, made.graph


def _of_every(made: Compilation) -> Pairs:
    """Return the calls of all candidates of all operators."""
    options = made.priced.candidates.operators
    choices = ((name, sharding) for name, every in options.items() for sharding in every)
    return _pairs(choices, made.graph, made.plan.mesh)


def _pairs(choices: Iterable[tuple[str, OpSharding]], graph: Graph, mesh: Mesh) -> Pairs:
    found: Pairs = {}
    for name, sharding in choices:
        node = graph.node[name]
        local, call = local_call(node, sharding, graph, mesh), call_of(node, sharding, graph, mesh)
        if local is not None and call is not None:
            found.setdefault(call.text, (local, call))
    return found
