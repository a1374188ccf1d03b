"""A drawing as SVG: boxes, words and arrows that are read on light and dark, and without colours.

Fills are those of Okabe and Ito, which colour-blind people tell apart; every box says in words what
it is, so colour never stands alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape

BLUE, ORANGE, GREEN, YELLOW, PINK = "#56B4E9", "#E69F00", "#2FB58A", "#F0E442", "#D89BC0"
STYLE = """
text { font-family: ui-sans-serif, system-ui, sans-serif; fill: #222; }
.in { fill: #111; } .faint { fill: #666; } .code { font-family: ui-monospace, monospace; }
.line { stroke: #555; fill: none; stroke-width: 1.5; } .tip { fill: #555; }
.box { stroke: #333; stroke-width: 1; } .empty { fill: none; stroke: #777; stroke-dasharray: 4 3; }
@media (prefers-color-scheme: dark) {
text { fill: #eee; } .in { fill: #111; } .faint { fill: #aaa; }
.line { stroke: #bbb; } .tip { fill: #bbb; } .box { stroke: #ddd; } .empty { stroke: #999; }
}
"""


@dataclass
class Drawing:
    """Collects shapes; `str` is the file.  Sizes are pixels, from the upper left corner."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def text(
        self, x: float, y: float, words: str, size: int = 14, kind: str = "", anchor: str = "start"
    ) -> None:
        """Words whose middle is at height `y`."""
        self.parts.append(
            f'<text x="{x:g}" y="{y + size * 0.35:g}" font-size="{size}" text-anchor="{anchor}" '
            f'class="{kind}">{escape(words)}</text>'
        )

    def box(
        self,
        x: float,
        y: float,
        w: float,
        h: float,
        fill: str = "",
        words: str = "",
        size: int = 14,
    ) -> None:
        """A box, dashed if it has no fill, with words in its middle; a line per ``\\n``."""
        style = f'class="box" fill="{fill}"' if fill else 'class="empty"'
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="2" {style}/>'
        )
        lines = words.split("\n") if words else []
        for number, line in enumerate(lines):
            at = y + h / 2 + (number - (len(lines) - 1) / 2) * size * 1.3
            self.text(x + w / 2, at, line, size, "in" if fill else "", "middle")

    def arrow(self, *points: tuple[float, float]) -> None:
        """Lines through the points, with a tip at the last; the last part is upright or level."""
        way = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.parts.append(f'<polyline points="{way}" class="line"/>')
        (x0, y0), (x, y) = points[-2:]
        dx, dy = (x > x0) - (x < x0), (y > y0) - (y < y0)
        corners = [(x, y), (x - 8 * dx - 4 * dy, y - 8 * dy - 4 * dx)]
        corners.append((x - 8 * dx + 4 * dy, y - 8 * dy + 4 * dx))
        self.parts.append(f'<polygon points="{_points(corners)}" class="tip"/>')

    def __str__(self) -> str:
        body = "\n".join(self.parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img">\n'
            f"<title>{escape(self.title)}</title>\n<style>{STYLE}</style>\n{body}\n</svg>\n"
        )


def _points(corners: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in corners)
