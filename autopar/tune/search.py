"""Decides what is tried next: the plans that are predicted to be fastest, by prices that improve."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from pathlib import Path

from autopar.errors import InfeasibleError
from autopar.tune.ask import Ask
from autopar.tune.correction import Factors, corrected, fitted
from autopar.tune.planner import AskPlanner
from autopar.tune.record import Attempt, Record, Trial, Tuned
from cost_models.hardware import Hardware, to_text

ROUNDS = 4
"""Times that the prices are corrected, at most."""
FURTHER = 3
"""Plans that are run in each round after the first."""
WORTH = 1.05
"""A plan is run if it is predicted to take less than this times the fastest step that was measured."""
CLOSE, FINALISTS, TURNS = 1.1, 3, 2
"""Plans within `CLOSE` of the fastest run again in turns, at most `FINALISTS` of them: a machine that
was slow for a moment decides nothing."""

Next = tuple[Attempt, Hardware]
"""What to run, and the profile that plans it."""
Search = Generator[Next, float | str, Tuned]
"""Yields what is next; is sent the seconds of its step, or why it failed."""
Running = Generator[Next, float | str, None]
"""A part of a search."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """The extent of tuning.

    - `most`: the number of plans that run before the prices are first corrected.
    - `steps`: the timed steps of each, in one turn.
    - `seconds`: after so many no further plan is begun.
    - `record`: a file that keeps what was measured, and from which a later run goes on.
    """

    most: int = 6
    steps: int = 5
    seconds: float = 600.0
    record: Path | None = None


@dataclass
class Searching:
    """The state of a search on rank 0; `tell` is called with a line for each trial."""

    planner: AskPlanner
    tuning: Tuning
    kept: Record
    tell: Callable[[str], None]
    began: float = field(default_factory=time.monotonic)

    def search(self) -> Search:
        """Try plans, correct the prices, and plan again, until nothing untried promises to be faster."""
        factors, ends = self._factors(), f"the prices were corrected {ROUNDS} times"
        for turn in range(ROUNDS):
            near = self._ranked()[0].attempt.ask if self._ranked() else Ask()
            found = self.planner.attempts(
                self._profile(factors), factors, near, {t.attempt.plan for t in self.kept.trials}
            )
            worth = self._worth(found, FURTHER if turn or self.kept.trials else self.tuning.most)
            if not worth:
                ends = "no other plan is predicted to be as fast"
                break
            for attempt in worth:
                if self._is_late():
                    return self._result(f"{self.tuning.seconds:g} s have passed")
                yield from self._try(attempt)
            factors = self._factors()
        yield from self._run_again()
        return self._result(ends)

    def _worth(self, found: list[Attempt], most: int) -> list[Attempt]:
        ranked = self._ranked()
        if not ranked:
            return found[:most]
        fastest = ranked[0].step_s
        return [each for each in found if each.predicted_s < WORTH * fastest][:most]

    def _try(self, attempt: Attempt) -> Running:
        self._keep(replace(self.kept, begun=attempt))
        answer = yield attempt, self._profile(Factors(*attempt.factors))
        why = answer if isinstance(answer, str) else ""
        trial = Trial(attempt, () if isinstance(answer, str) else (answer,), why)
        self._keep(replace(self.kept, trials=(*self.kept.trials, trial), begun=None))
        self.tell(f"{attempt.ask}: {trial.why or _said(trial)}")

    def _run_again(self) -> Running:
        """Run the fastest plans again, in turns."""
        ranked = self._ranked()
        close = [t for t in ranked if t.step_s < CLOSE * ranked[0].step_s][:FINALISTS]
        for _ in range(TURNS if len(close) > 1 else 0):
            for attempt in [trial.attempt for trial in close]:
                if self._is_late():
                    return
                answer = yield attempt, self._profile(Factors(*attempt.factors))
                if not isinstance(answer, str):
                    self._add(attempt, answer)

    def _add(self, attempt: Attempt, seconds: float) -> None:
        trials = tuple(
            replace(t, measured_s=(*t.measured_s, seconds)) if t.attempt == attempt else t
            for t in self.kept.trials
        )
        self._keep(replace(self.kept, trials=trials))

    def _keep(self, record: Record) -> None:
        self.kept = record
        if self.tuning.record is not None:
            record.save(self.tuning.record)

    def _ranked(self) -> list[Trial]:
        """The trials that ran, fastest first."""
        return sorted((t for t in self.kept.trials if t.measured_s), key=lambda t: t.step_s)

    def _factors(self) -> Factors:
        ran = [(t.attempt.parts, t.step_s) for t in self._ranked()]
        return fitted([(part, seconds) for part, seconds in ran if part is not None])

    def _profile(self, factors: Factors) -> Hardware:
        return corrected(self.planner.first, factors, len(self._ranked()))

    def _is_late(self) -> bool:
        return time.monotonic() - self.began > self.tuning.seconds

    def _result(self, ends: str) -> Tuned:
        """Return the fastest plan with a profile by which its ask leads to it."""
        ranked = self._ranked()
        if not ranked:
            whys = "\n- ".join(f"{t.attempt.ask}: {t.why}" for t in self.kept.trials)
            raise InfeasibleError(f"No plan of this model ran:\n- {whys or 'none fits the memory'}")
        best, last = ranked[0].attempt, self._factors()
        for factors in (last, Factors(*best.factors)):
            hardware = self._profile(factors)
            made = self.planner.plan(best.ask, hardware)
            if made is not None and made.digest == best.plan:
                return Tuned(
                    self.kept.trials, best.ask, last.values, ends, made.to_json(), to_text(hardware)
                )
        raise InfeasibleError(
            f"The fastest plan, {best.ask}, is not found again: the model or autopar has changed since "
            "it was measured. Tune again with another --record."
        )


def _said(trial: Trial) -> str:
    return f"{1e3 * trial.step_s:.4g} ms, predicted {1e3 * trial.attempt.predicted_s:.4g} ms"
