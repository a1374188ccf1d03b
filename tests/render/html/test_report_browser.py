"""The report in a browser: wide, narrow and on a phone, light and dark, with all sections there are."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import autopar
from autopar.explain.explanation import Alternative, Explanation
from autopar.plans.identity import Identity
from autopar.plans.pipeline_data import Compared
from autopar.plans.record import View
from autopar.profile.traced_step import Beside, FlowLine, Line
from autopar.render.html import Extras, report, roofline
from cost_models.hardware import load
from tests.models import CASES
from tests.render.html.browser import Browser, Scheme, program
from tests.render.text import hand_made

SWITCH = "AUTOPAR_BROWSER"
GROUND = {"light": "rgb(253, 253, 252)", "dark": "rgb(22, 24, 27)"}
PHONE = 390


def path_of_it() -> str:
    """Where Chromium is; without it tests are skipped, or fail where the switch says "required"."""
    path = program()
    if path is None and os.environ.get(SWITCH) == "required":
        pytest.fail(f"${SWITCH} is required, and no Chromium is installed")
    return path or pytest.skip("no Chromium is installed")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One for all pages."""
    made = Browser(path_of_it(), tmp_path_factory.mktemp("browser"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reports as files: of a plan with all that can be passed, of a pipeline, of many kinds."""
    folder = tmp_path_factory.mktemp("pages")
    pipe = hand_made.pipeline(4, 12)
    assert pipe.prediction
    others = (
        Compared("no stages on x=4, y=4", 0.3),
        Compared("1f1b of 4 microbatches on 2+2", None),
    )
    pipe = replace(pipe, prediction=replace(pipe.prediction, compared=others))
    made = {
        "whole": whole(), "pipeline": report(pipe), "many": report(hand_made.of_all_collectives()[0]),
    }  # fmt: skip
    for name, text in made.items():
        (folder / f"{name}.html").write_text(text)
    return {name: folder / f"{name}.html" for name in made}


def whole() -> str:
    """Every section of a plan without stages."""
    model, inputs, loss = CASES["gpt2"]()
    made = autopar.compile_model(
        model, (2, 2), inputs, loss=loss, hardware="h100", preset="fsdp_megatron",
        constraints={"*.mlp.c_fc/addmm": {"y": "S(1)"}, "stored:*.ln_f.weight": "[S(0), I]"},
    )  # fmt: skip
    plan = replace(
        made.plan, views=(View("x=4", 1.5 * made.plan.objective_s), View("x=2, y=2", None))
    )
    e = plan.estimate
    smaller = replace(e, compute_s=1.3 * e.compute_s, activation_nbytes=e.activation_nbytes // 2)
    extras = Extras(
        (plan, plan.with_estimate(smaller)), roofline(plan, made.graph, load("h100")),
        (("emitted", made.source),), (("model.py", made.source), ("loss.py", "def loss(): ...")),
        80 * 2**30, (explained(), explained()), measured(plan),
    )  # fmt: skip
    return report(plan, extras)


def explained() -> Explanation:
    """A way that was solved for, one that is impossible, and many that nobody looked at."""
    before, after = hand_made.plan(), hand_made.other()
    ways = (
        Alternative("stored [S(0, of=4), S(0)], in the step [S(0, of=4), S(0)]",
                    "sharded and gathered at each use on axis x, split by rows on axis y", True,
                    0.04, before, before.diff(before)),
        Alternative("stored [I, S(0)], in the step [R, S(0)]", "replicated on axis x", False, 0.05,
                    after, before.diff(after)),
        Alternative("stored [R, R]", "", False, 0.05, why="No plan was found that fits 40.0 GiB."),
        *(Alternative(f"stored [S({n}), S(0, of=8), S(1)], in the step [S({n}), R, S(1)]", "", False,
                      0.05 + n) for n in range(9)),
    )  # fmt: skip
    sentence = (
        "model.layers.0.mlp.up.weight is sharded; if it were replicated, a step would take more."
    )
    return Explanation(
        "up.weight", "model.layers.0.mlp.up.weight", "parameter", sentence, ways,
        "of stage 1 of 2 alone",
    )  # fmt: skip


def measured(plan: autopar.Plan) -> Beside:
    """A step of the plan, with lines of source."""
    lines = tuple(
        Line(f"transformer.h.{n}", "modeling_gpt2.py:123", "hidden_states = self.c_proj(self.act(x))",
             1, "modelled", 0.002, 0.004, 0.003 + 0.001 * n, 0.006)
        for n in range(4)
    )  # fmt: skip
    sent = FlowLine("x", "reduce_scatter", "backward", 3, 4, 0.001, 0.002)
    predicted_s = plan.estimate.step_s
    return Beside(Identity.of(plan), plan.digest, predicted_s, 1.0, 1.1, 0.01, 0.02, lines, (sent,))


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1366, 500, PHONE])
@pytest.mark.parametrize("name", ["whole", "pipeline", "many"])
def test_a_browser_draws_every_section(
    name: str, width: int, scheme: Scheme, browser: Browser, pages: dict[str, Path], tmp_path: Path
) -> None:
    """Every chart is drawn, nothing is refused, and the page is no wider than its window.

    Without Chromium this is skipped, or with AUTOPAR_BROWSER=required fails.  A picture of the page,
    all that folds away opened, is left in the test's folder.
    """
    text = pages[name].read_text()
    found = re.search(r'id="figures">(.*?)</script>', text, re.DOTALL)
    assert found
    figures = len(json.loads(found[1].replace("<\\/", "</")))
    assert figures == {"whole": 5, "pipeline": 3, "many": 3}[name]
    look = browser.look(pages[name], width, scheme, tmp_path / f"{name}-{width}-{scheme}.png")
    assert look.faults == ()
    assert look.drawn == look.charts == figures
    assert look.wide <= look.inner == width
    assert look.touched == [], "a legend of twelve has room above the bars"
    assert look.ground == GROUND[scheme]
    assert (tmp_path / f"{name}-{width}-{scheme}.png").stat().st_size > 10_000
    if width == PHONE:
        assert look.scrolled == [], "rows become cards"


def test_a_browser_that_is_missing_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "program", lambda: None)
    monkeypatch.delenv(SWITCH, raising=False)
    with pytest.raises(pytest.skip.Exception):
        path_of_it()
    monkeypatch.setenv(SWITCH, "required")
    with pytest.raises(pytest.fail.Exception, match="no Chromium is installed"):
        path_of_it()
