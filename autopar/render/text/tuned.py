"""Renders the trials of tuning, and the call that trains the fastest plan."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from autopar.ir.units import seconds
from autopar.render.text.table import line, table
from autopar.tune import Tuned


def show_tuned(found: Tuned, profile: str) -> RenderableType:
    """Return a table of all trials by their step; `profile` is the file of the corrected profile."""
    columns = ("predicted", "measured", "ratio", "turns")
    made = table("plans that ran", "plan", *columns, right=columns)
    for trial in sorted(found.trials, key=lambda trial: trial.step_s):
        attempt = trial.attempt
        if not trial.measured_s:
            line(made, str(attempt.ask), 1, seconds(attempt.predicted_s), "failed", "", "")
            continue
        ratio = f"{trial.step_s / attempt.predicted_s:.2f}"
        line(made, str(attempt.ask), 1, seconds(attempt.predicted_s), seconds(trial.step_s), ratio,
             str(len(trial.measured_s)))  # fmt: skip
    whys = [Text(f"{t.attempt.ask}: {t.why}") for t in found.trials if t.why]
    compute, intra, inter = (f"{factor:.2f}" for factor in found.factors)
    return Group(
        made, "",
        Text(f"fastest: {found.fastest}; {found.ends}"),
        Text(f"prices times: compute {compute}, links inside a host {intra}, between hosts {inter}"),
        Text(f"train with: {call_of(found, profile)}"),
        *whys,
    )  # fmt: skip


def call_of(found: Tuned, profile: str) -> str:
    """Return the call of `parallelize` that trains the fastest plan."""
    given = {"hardware": profile} | found.fastest.arguments()
    words = ["model", "mesh", "batch", *(f"{name}={value!r}" for name, value in given.items())]
    return f"autopar.parallelize({', '.join(words)})"
