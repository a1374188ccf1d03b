"""How things look in every chart: a kind has one colour, and a mesh axis one pattern over it.

Colours are such that the colour-blind tell them apart, and that both themes' ground shows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# Okabe and Ito, "Color Universal Design", 2008.
BLUE, ORANGE, GREEN, SKY, RED, PINK, YELLOW, GREY = (
    "#0072B2", "#E69F00", "#009E73", "#56B4E9", "#D55E00", "#CC79A7", "#F0E442", "#888888",
)  # fmt: skip
# Those are too few: as far from them, and from both themes' ground, as can be.
VIOLET, BROWN, INDIGO = "#B66DFF", "#A0522D", "#5050FF"
COMPUTE = {"forward": BLUE, "backward": ORANGE, "input gradient": RED, "weight gradient": PINK,
           "update": GREY}  # fmt: skip
SENT = {"all_gather": GREEN, "all_reduce": SKY, "reduce_scatter": YELLOW, "all_to_all": BROWN,
        "reduce gradients": INDIGO, "sends": VIOLET}  # fmt: skip
PATTERNS = ("/", "x", ".", "-")
"""By a mesh axis' place."""
ROWS = (BLUE, ORANGE, GREEN, PINK, SKY)
"""Workers and stages."""
SYMBOLS = ("circle", "square-open", "diamond-open", "triangle-up-open")
"""Equal stages lie above each other, and all are seen."""
DASHES = ("solid", "dot", "dash", "longdash", "dashdot")


def marker(kind: str, places: Sequence[int | None]) -> dict[str, Any]:
    """Bars of a kind, each of the mesh axis in that place, or of none; what nobody knows is grey.

    The pattern is dark enough for both themes.
    """
    shapes = ["" if place is None else PATTERNS[place % len(PATTERNS)] for place in places]
    over = {"shape": shapes if len(shapes) > 1 else shapes[0], "solidity": 0.25,
            "fillmode": "overlay", "fgcolor": "#222", "size": 6}  # fmt: skip
    return {"color": {**COMPUTE, **SENT}.get(kind, GREY), "line": {"width": 0}, "pattern": over}
