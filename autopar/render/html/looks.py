"""Colours, patterns and symbols of all charts: one colour per kind, with one pattern per mesh axis.

The colours are distinguishable with colour blindness, and visible on the background of both themes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cost_models.exchanges import EXCHANGES

# Okabe and Ito, "Color Universal Design", 2008.
BLUE, ORANGE, GREEN, SKY, RED, PINK, YELLOW, GREY = (
    "#0072B2", "#E69F00", "#009E73", "#56B4E9", "#D55E00", "#CC79A7", "#F0E442", "#888888",
)  # fmt: skip
# Further colours, as far as possible from those and from the backgrounds of both themes.
VIOLET, BROWN, INDIGO = "#B66DFF", "#A0522D", "#5050FF"
COMPUTE = {"forward": BLUE, "backward": ORANGE, "input gradient": RED, "weight gradient": PINK,
           "update": GREY}  # fmt: skip
SENT = {**dict(zip(EXCHANGES, (SKY, GREEN, YELLOW, BROWN), strict=False)),
        "reduce gradients": INDIGO, "sends": VIOLET}  # fmt: skip
PATTERNS = ("/", "x", ".", "-")
"""Patterns by the position of a mesh axis."""
ROWS = (BLUE, ORANGE, GREEN, PINK, SKY)
"""Colours of workers and stages."""
SYMBOLS = ("circle", "square-open", "diamond-open", "triangle-up-open")
"""Symbols of stages, chosen so that coinciding dots of equal stages are all visible."""
DASHES = ("solid", "dot", "dash", "longdash", "dashdot")


def marker(kind: str, places: Sequence[int | None]) -> dict[str, Any]:
    """Return the marker of a kind's bars; `places` are the positions of their mesh axes (None: no axis).

    Unknown kinds are grey.  The pattern is dark enough for both themes.
    """
    shapes = ["" if place is None else PATTERNS[place % len(PATTERNS)] for place in places]
    over = {"shape": shapes if len(shapes) > 1 else shapes[0], "solidity": 0.25,
            "fillmode": "overlay", "fgcolor": "#222", "size": 6}  # fmt: skip
    return {"color": {**COMPUTE, **SENT}.get(kind, GREY), "line": {"width": 0}, "pattern": over}
