"""Tables and drawings in terminals that are narrower than a page."""

from __future__ import annotations

import io

import pytest
from rich.text import Text

from autopar.cli.output import Uncropped
from autopar.explain.replay import Conditions, play
from autopar.render.text import show_pipeline, show_plan, show_played, to_text
from autopar.render.text.table import line, row, table
from tests.render.text import hand_made

NAMES = ("post_attention_layernorm", "recompute selective", "model.layers.0.mlp.gate.weight")
CELLS = ("4096x16384", "[S(0, of=3), R]", "all_gather 650.9 µs", "1.0 GiB", "hidden, all of it")


def of_names(width: int) -> list[str]:
    made = table("title", "name", "", *(f"column {n}" for n in range(5)), right=("column 3",))
    row(made, NAMES[0], "", *CELLS)
    row(made, NAMES[1], "", *CELLS)
    line(made, NAMES[2], 4, *CELLS)
    return to_text(made, width).splitlines()


@pytest.mark.parametrize("width", [20, 40, 60, 80, 90, 120])
def test_words_stay_whole(width: int) -> None:
    said = of_names(width)
    words = {word for each in said for word in each.split()}
    whole = {
        "post_attention_layernorm",
        "recompute",
        "selective",
        "4096x16384",
        "all_gather",
        "650.9",
    }
    assert words >= whole and "1.0 GiB" in "\n".join(said)
    assert any(each.startswith("model.layers.0.mlp") for each in said)


def test_a_terminal_is_filled_before_it_overflows() -> None:
    for width in (80, 90, 100):
        assert max(map(len, of_names(width))) <= width
    assert max(map(len, of_names(20))) == max(map(len, of_names(60))) > 60


def test_numbers_keep_their_units() -> None:
    for width in (40, 60, 80):
        assert to_text(show_pipeline(hand_made.pipeline()), width).count(" MiB") == to_text(
            show_pipeline(hand_made.pipeline()), 200
        ).count(" MiB")


def test_names_of_a_plan_at_half_a_page() -> None:
    said = to_text(show_plan(hand_made.plan()), 50)
    for name in ("model.embed", "mlp.up.weight", "model.layers.5"):
        assert name in said


@pytest.mark.parametrize("made", [hand_made.plan, hand_made.pipeline])
def test_a_timeline_is_as_wide_as_the_terminal(made: object) -> None:
    played = play(made(), Conditions.of((), None, ()), None)  # type: ignore[operator]
    for width in (50, 60, 80):
        drawn = [
            each
            for each in to_text(show_played(played, width), width=500).splitlines()
            if set("·▇█") & set(each) and "nothing" not in each and "waits" not in each
        ]
        assert drawn and max(map(len, drawn)) <= width


def test_a_console_cuts_nothing_off() -> None:
    out = io.StringIO()
    console = Uncropped(file=out, width=10, force_terminal=True)
    console.print(Text("0123456789abc"), no_wrap=True, overflow="ignore")
    assert "0123456789abc" in out.getvalue()
