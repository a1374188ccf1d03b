"""Compiles the stages that a user requests, with cuts that minimise the predicted step.

The search is over narrow places.  It begins with stages of equal FLOPs.  The seconds of their compiled
operators give cuts into stages of equal seconds.  From the better of the two, local search moves a
border of the slowest stage by one place as long as the step becomes shorter.  Every stage is compiled
only once, even if several cuts contain it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from autopar.errors import InfeasibleError, OverLimitError
from autopar.ir.graph import Graph
from autopar.ir.mesh import Mesh
from autopar.ir.split import computing
from autopar.pipeline.build.cuts import balanced, divided, places_for
from autopar.pipeline.build.pipeline_spec import PipelineSpec
from autopar.pipeline.build.predict import predict_with_peaks
from autopar.pipeline.build.staged import Limits, Staged, compile_pipeline, stage_compiler
from autopar.plans.pipeline_data import Compared, Prediction, StageFigures
from autopar.plans.plan import Plan
from autopar.sharding.sharding_problem import Settings
from autopar.solver import readable
from cost_models.hardware import Hardware

MOST = 12
"""The maximum number of cuts tried."""
SHARES = (1.0, 0.9, 0.8, 0.7, 0.6)
"""Fractions of a worker's memory tried for each of its stages, if equal shares are too small for one."""
TRIES = 3
"""Larger shares that are tried if equal ones are enough for all stages."""


def compile_forced(
    graph: Graph, mesh: Mesh, hardware: Hardware, settings: Settings, wanted: PipelineSpec
) -> Staged:
    """Return a pipeline with its predicted step; `graph` is the graph of one microbatch.

    The cuts are those in `wanted`, or those between its layers, or the best that are found.  Raises
    `InfeasibleError` if the stages of these cuts, or those of equal FLOPs, do not fit.
    """
    search = _Search(graph, mesh, hardware, settings, wanted)
    is_given = wanted.cuts or wanted.layers is not None
    return search.made(wanted.cuts) if is_given else search.best()


@dataclass
class _Search:
    graph: Graph
    mesh: Mesh
    hardware: Hardware
    settings: Settings
    wanted: PipelineSpec
    tried: dict[tuple[str, ...], float | None] = field(default_factory=dict)
    """Predicted steps by cuts; None: the stages do not fit."""

    def __post_init__(self) -> None:
        self._compiler = stage_compiler(self.graph, self.mesh, self.hardware)

    def made(self, cuts: tuple[str, ...]) -> Staged:
        """Return the pipeline of these cuts, with its prediction."""
        wanted, limit = replace(self.wanted, cuts=cuts), self.settings.memory_limit
        held = [(s, w) for w, stages in enumerate(wanted.build().held) for s in stages]
        if limit is None or len(held) == len(wanted.workers):
            return self._compiled(wanted)[0]
        return self._sharing(wanted, held, limit)

    def _compiled(
        self, wanted: PipelineSpec, limits: Limits | None = None
    ) -> tuple[Staged, tuple[float, ...]]:
        """Return the pipeline with its prediction, and the peak bytes of each worker."""
        made = compile_pipeline(
            self.graph, self.mesh, self.hardware, self.settings, wanted, self._compiler, limits
        )
        found, peaks = predict_with_peaks(made.plan, made.stages, self.hardware, self.settings)
        return replace(made, plan=replace(made.plan, prediction=found)), peaks

    def _sharing(
        self, wanted: PipelineSpec, held: Sequence[tuple[int, int]], limit: float
    ) -> Staged:
        """Return the pipeline if workers have several stages, whose memory limits must be chosen.

        The stages of a worker get equal shares of its memory, and then more if that leaves room.  If one
        needs more, each stage may take all of it, then decreasing fractions, until they fit together:
        their peaks need not coincide.
        """
        with suppress(InfeasibleError):
            return self._with_room(wanted, held, limit, *self._compiled(wanted))
        least = math.inf
        for share in SHARES:
            try:
                made, peaks = self._compiled(wanted, dict.fromkeys(held, share * limit))
            except InfeasibleError:
                if least == math.inf:
                    raise
                break
            if max(peaks) <= limit:
                return made
            least = min(least, max(peaks))
        raise OverLimitError(
            f"No pipeline was found that fits {readable(limit)} per device: the stages of one worker "
            f"need {readable(least)} together. Raise the limit, use more devices, or a smaller batch.",
            least,
        )

    def _with_room(
        self,
        wanted: PipelineSpec,
        held: Sequence[tuple[int, int]],
        limit: float,
        best: Staged,
        peaks: Sequence[float],
    ) -> Staged:
        """Return the best pipeline that is found with larger shares of a worker's memory for its stages.

        Under equal shares, stages recompute or gather again for memory that is then free: the temporary
        memory of only one stage of a worker is in use at a time.
        """
        if not any(_saves_memory(stage.plan) for stage in best.plan.stages):
            return best
        low = limit * len(wanted.workers) / len(held)
        high = min(limit, low * limit / max(peaks))
        for _ in range(TRIES):
            share = math.sqrt(low * high)
            made, peaks = self._compiled(wanted, dict.fromkeys(held, share))
            if max(peaks) > limit:
                high = share
                continue
            low = share
            if _is_shorter(made, best):
                best = made
        return best

    def best(self) -> Staged:
        """Return the pipeline with the best of the cuts tried, with the record of all of them."""
        shares = self.wanted.shares(self.wanted.build())
        self._places = places_for(self.graph, len(shares))
        best = self._try(balanced(self.graph, shares), None)
        best = self._try(divided(self.graph, self._places, shares, self._seconds(best)), best)
        while (better := self._step_down(best)) is not None:
            best = better
        if len(self.tried) == 1:
            return best
        compared = tuple(Compared(_words(cuts), step) for cuts, step in self.tried.items())
        found = replace(_prediction(best), compared=compared)
        return replace(best, plan=replace(best.plan, prediction=found))

    def _try(self, cuts: tuple[str, ...], best: Staged | None) -> Staged:
        """Return the better of `best` and these cuts; raise `InfeasibleError` if there is neither."""
        if best is not None and (cuts in self.tried or len(self.tried) == MOST):
            return best
        try:
            made = self.made(cuts)
        except InfeasibleError:
            if best is None:
                raise
            self.tried[cuts] = None
            return best
        self.tried[cuts] = _prediction(made).step_s
        return made if best is None or _is_shorter(made, best) else best

    def _step_down(self, best: Staged) -> Staged | None:
        """Return a better neighbour, or None."""
        for cuts in self._neighbours(best):
            found = self._try(cuts, best)
            if found is not best:
                return found
        return None

    def _neighbours(self, best: Staged) -> Iterator[tuple[str, ...]]:
        """Yield cuts with the slowest stage shortened by its last piece, and by its first."""
        cuts = best.plan.cuts
        stage = _slowest(_prediction(best).stages)
        for border, towards in ((stage, -1), (stage - 1, 1)):
            if not 0 <= border < len(cuts):
                continue
            moved = self._places.index(cuts[border]) + towards
            if 0 <= moved < len(self._places) and self._places[moved] not in cuts:
                yield (*cuts[:border], self._places[moved], *cuts[border + 1 :])

    def _seconds(self, made: Staged) -> dict[str, float]:
        """Return by operator the device seconds of a microbatch; 0 for operators without a time."""
        spent = dict.fromkeys((node.name for node in computing(self.graph)), 0.0)
        for each in made.plan.stages:
            size = each.plan.mesh.world_size
            for time in each.plan.estimate.operators:
                spent[time.node] = size * (time.forward_s + time.backward_s)
        return spent


def _slowest(stages: Sequence[StageFigures]) -> int:
    """Return the stage with the most seconds per microbatch on any of its workers."""
    return max(stages, key=lambda s: s.forward_s + s.input_grad_s + s.weight_grad_s).stage


def _prediction(staged: Staged) -> Prediction:
    assert staged.plan.prediction is not None
    return staged.plan.prediction


def _saves_memory(plan: Plan) -> bool:
    """Return whether a plan recomputes blocks or gathers weights again, which costs seconds."""
    return bool(plan.recompute) or any(p.regather for p in plan.parameters)


def _is_shorter(one: Staged, two: Staged) -> bool:
    """Return whether the step is shorter by more than rounding."""
    return _prediction(one).step_s < (1 - 1e-9) * _prediction(two).step_s


def _words(cuts: Sequence[str]) -> str:
    return f"cut at {', '.join(cuts)}"
