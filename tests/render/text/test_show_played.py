"""What a played step is said to be: the words of its figures mean what was played."""

from __future__ import annotations

from autopar.explain.replay import Conditions, play
from autopar.render.text import show_played, to_text
from tests.render.text import hand_made


def test_only_what_computes_is_said_to() -> None:
    """A pipeline's actions hold collectives, so another bandwidth changes how long they take."""
    whole, stages = (
        to_text(show_played(play(plan, Conditions(bandwidth={"y": 0.1}))))
        for plan in (hand_made.plan(), hand_made.pipeline())
    )
    assert "computes  does not" in whole and "busy" not in whole
    assert "busy with its actions and the collectives in them" in stages
    assert "comput" not in stages.replace("behind compute", "")
