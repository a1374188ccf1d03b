"""Draws docs/pictures: ``python docs/site/pictures.py docs/pictures``.

What can be computed is: who holds which rows, and who works when, are what autopar says.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from svg import BLUE, GREEN, ORANGE, PINK, YELLOW, Drawing

from autopar.ir.mesh import Mesh
from autopar.ir.placement import Sharding
from autopar.pipeline.schedules import build
from autopar.render.text.schedules import equal_parts
from autopar.runtime.shards import part

RANKS = (BLUE, ORANGE)


def flow() -> Drawing:
    """From a model to Python."""
    made = Drawing(760, 190, "The flow of the compiler")
    steps = [
        ("your model\nand a batch", YELLOW), ("graph", BLUE), ("candidates", BLUE),
        ("problem", BLUE), ("plan", GREEN), ("Python", YELLOW),
    ]  # fmt: skip
    between = ["capture", "rules", "prices", "solver", "emission"]
    for place, (words, fill) in enumerate(steps):
        made.box(10 + 126 * place, 60, 96, 54, fill, words, 13)
    for place, words in enumerate(between):
        x = 106 + 126 * place
        made.arrow((x, 87), (x + 30, 87))
        made.text(x + 15, 40, words, 13, "", "middle")
    notes = {1: "what is computed", 2: "how each may\nbe split", 3: "seconds and\nbytes of each",
             4: "one of each,\nand a bound", 5: "runs on\nevery rank"}  # fmt: skip
    for place, words in notes.items():
        for number, line in enumerate(words.split("\n")):
            made.text(58 + 126 * place, 136 + 17 * number, line, 12, "faint", "middle")
    return made


def types() -> Drawing:
    """A 4 x 4 matrix on two ranks under four types."""
    made = Drawing(760, 226, "A matrix on two ranks, under each type")
    cell = 18
    for place, kind in enumerate(("S(0)", "S(1)", "R or I", "P")):
        x = 20 + 188 * place
        made.text(x + 76, 24, kind, 16, "code", "middle")
        for rank in range(2):
            left = x + rank * 92
            made.text(left + 36, 56, f"rank {rank}", 12, "faint", "middle")
            rows = range(4) if kind != "S(0)" else range(2 * rank, 2 * rank + 2)
            columns = range(4) if kind != "S(1)" else range(2 * rank, 2 * rank + 2)
            for row in range(4):
                for column in range(4):
                    here = row in rows and column in columns
                    word = f"{4 * row + column}" if kind != "P" else "ab"[rank]
                    made.box(left + cell * column, 74 + cell * row, cell, cell,
                             RANKS[rank] if here else "", word if here else "", 10)  # fmt: skip
    captions = (
        ("rows are divided", "gradient: likewise"),
        ("columns are divided", "gradient: likewise"),
        ("equal on both", "R: gradients differ, to be"),
        ("the value is a + b", "gradient: equal on both"),
    )
    for place, lines in enumerate(captions):
        for number, line in enumerate(lines):
            made.text(20 + 188 * place, 170 + 18 * number, line, 12)
    made.text(396, 206, "summed; I: equal gradients", 12)
    return made


def held(sharding: str, mesh: Mesh, rows: int) -> dict[int, tuple[int, ...]]:
    """For each row, the rank that holds it: the last one, where several do."""
    numbers = torch.arange(rows)
    return {
        int(row): rank
        for rank in itertools.product(*map(range, mesh.sizes))
        for row in part(numbers, Sharding.parse(sharding), mesh, rank)
    }


def nesting() -> Drawing:
    """Sixteen rows on 2 x 4."""
    made = Drawing(
        760, 300, "Sixteen rows under three shardings on a mesh of two nodes of four GPUs"
    )
    mesh, rows = Mesh.of(2, 4, names=("node", "gpu")), 16
    shown = (
        ("[S(0), S(0, of=2)]", "node outside, gpu inside"),
        ("[S(0, of=4), S(0)]", "gpu outside, node inside"),
        ("[I, S(0, of=2)]", "two fused weights, each split by gpu"),
    )
    for number, (text, words) in enumerate(shown):
        y = 20 + 92 * number
        made.text(10, y + 4, text, 14, "code")
        made.text(230, y + 4, words, 13, "faint")
        for row, owner in held(text, mesh, rows).items():
            both = text.startswith("[I")
            fill = GREEN if both else RANKS[owner[0]]
            label = f"gpu {owner[1]}" if both else f"{owner[0]}.{owner[1]}"
            made.box(10 + 46 * row, y + 20, 46, 34, fill, label, 11 if both else 13)
    made.text(
        10,
        292,
        "0.3: GPU 3 of node 0 has the row; blue is node 0, orange node 1, green both",
        12,
        "faint",
    )
    return made


def rules() -> Drawing:
    """``b i, o i -> b o`` with each factor split."""
    made = Drawing(
        760, 330, "A linear layer, b i, o i -> b o, with one factor split over two ranks"
    )
    made.text(10, 18, "b i, o i -> b o", 15, "code")
    made.text(
        150,
        18,
        "one factor at a time is split over two ranks; green is on both",
        12,
        "faint",
    )
    lines = (
        ("b", "batch", "weight is read whole", "data parallelism", "rows", "whole", "rows"),
        ("o", "features out", "operand is read whole", "tensor parallelism, columns",
         "whole", "rows", "columns"),
        ("i", "features in", "the result is a sum over ranks", "tensor parallelism, rows",
         "columns", "columns", "sum"),
    )  # fmt: skip
    for number, (factor, name, what_is, what_for, *ways) in enumerate(lines):
        y = 48 + 94 * number
        made.text(10, y + 22, f"split {factor}", 14, "code")
        made.text(10, y + 44, name, 12, "faint")
        x = 120.0
        for sign, what, way in zip(
            ("", ",", "->"), ("operand", "weight", "result"), ways, strict=True
        ):
            if sign:
                made.text(x - 24, y + 32, sign, 15, "code", "middle")
            _matrix(made, x, y, what, way)
            x += 160
        made.text(570, y + 22, what_is, 12)
        made.text(570, y + 42, what_for, 12)
    return made


def _matrix(made: Drawing, x: float, y: float, what: str, way: str) -> None:
    """Two halves, one whole, or two that add up."""
    if way == "rows":
        for rank in range(2):
            made.box(x, y + 32 * rank, 100, 32, RANKS[rank], f"rank {rank}", 12)
    elif way == "columns":
        for rank in range(2):
            made.box(x + 50 * rank, y, 50, 64, RANKS[rank], f"rank {rank}", 12)
    elif way == "sum":
        made.box(x, y, 88, 52, BLUE)
        made.text(x + 44, y + 7, "rank 0", 11, "in", "middle")
        made.box(x + 12, y + 14, 88, 50, ORANGE, "+ rank 1", 12)
    else:
        made.box(x, y, 100, 64, GREEN, "both ranks", 12)
    made.text(x + 50, y + 74, what, 11, "faint", "middle")


def solver() -> Drawing:
    """The worked example of docs/solver.md: what elimination adds up."""
    made = Drawing(760, 300, "Elimination of loss and A from the example, and what is left over B")
    for x, name, costs in ((20, "A", "4, 2"), (190, "B", "4, 2"), (360, "loss", "1, 1")):
        made.box(x, 60, 80, 54, BLUE, f"{name}\n{costs}", 13)
    for x, table in ((100, "0  1 / 3  0"), (270, "0  ∞ / 1  2")):
        made.parts.append(f'<polyline points="{x},87 {x + 90},87" class="line"/>')
        made.text(x + 45, 70, table, 12, "code", "middle")
    made.text(
        20,
        30,
        "Seconds of each state; between two variables, the seconds of each pair of states",
        13,
        "faint",
    )
    made.box(510, 60, 230, 54, YELLOW, "1. loss goes:\nover B stays 1, 2", 13)
    made.arrow((440, 87), (508, 87))
    made.box(20, 160, 80, 54, BLUE, "A\n4, 2", 13)
    made.box(190, 160, 120, 54, BLUE, "B\n4+1, 2+2", 13)
    made.parts.append('<polyline points="100,187 190,187" class="line"/>')
    made.text(145, 170, "0  1 / 3  0", 12, "code", "middle")
    made.box(510, 160, 230, 54, YELLOW, "2. A goes:\nover B stays 4, 2", 13)
    made.arrow((310, 187), (508, 187))
    made.box(190, 240, 120, 54, GREEN, "B\n9, 6", 13)
    made.box(510, 240, 230, 54, GREEN, "3. the least is 6: B = 1,\nso A = 1 and loss = 0", 13)
    made.arrow((310, 267), (508, 267))
    return made


def stages() -> Drawing:
    """A chain of layers on submeshes of one cluster."""
    made = Drawing(760, 344, "Eight layers cut into three stages on submeshes of 2 x 4 devices")
    made.text(10, 16, "layers, and the cuts between them", 13, "faint")
    fills = (BLUE, ORANGE, GREEN)
    spans = ((0, 4), (4, 6), (6, 8))
    shapes = ("1x4: one host", "1x2", "1x2")
    x = 10.0
    for number, (start, end) in enumerate(spans):
        first = x
        for layer in range(start, end):
            made.box(x, 34, 78, 40, fills[number], f"layer {layer}", 13)
            x += 80
        made.text((first + x) / 2, 92, f"stage {number}", 13, "", "middle")
        x += 26 if number < 2 else 0
    made.text(10, 128, "the devices of two hosts", 13, "faint")
    for host in range(2):
        for device in range(4):
            stage = 0 if host == 0 else 1 + device // 2
            made.box(10 + 92 * device, 144 + 50 * host, 90, 42, fills[stage], f"stage {stage}", 13)
        made.text(392, 165 + 50 * host, f"host {host}", 13)
    for number, shape in enumerate(shapes):
        made.text(470, 154 + 24 * number, f"stage {number}: submesh {shape}", 13)
    made.text(
        10, 262, "1F1B: microbatches that a stage holds, by its position from the end", 13, "faint"
    )
    for number, kept in enumerate((3, 2, 1)):
        for place in range(kept):
            x = 10 + 250 * number + 64 * place
            made.box(x, 280, 60, 34, fills[number], f"kept {place + 1}", 12)
        made.text(10 + 250 * number, 328, f"stage {number}", 13)
    return made


def schedules() -> Drawing:
    """1F1B and ZB-H1 as the simulator plays them."""
    made = Drawing(760, 360, "Four workers and eight microbatches under 1F1B and under ZB-H1")
    fills = {"F": BLUE, "B": ORANGE, "I": YELLOW, "W": PINK}
    second = 20.5
    for number, name in enumerate(("1f1b", "zb-h1")):
        played = equal_parts(build(name, 4, 8))
        y = 40 + 168 * number
        made.text(10, y - 18, f"{name}: {played.step:g} seconds", 14)
        for worker, row in enumerate(played.ran):
            made.text(10, y + 15 + 32 * worker, f"worker {worker}", 12)
            made.box(74, y + 32 * worker, second * played.step, 28)
            for ran in row:
                kind = str(ran.action.kind)
                if kind in fills:
                    made.box(74 + second * ran.start, y + 32 * worker, second * (ran.end - ran.start),
                             28, fills[kind], f"{kind}{ran.action.microbatch}", 10)  # fmt: skip
    made.text(
        10,
        346,
        "F forward, B backward; in ZB-H1 I gradient of inputs, W of weights; dashed: nothing to do",
        12,
        "faint",
    )
    return made


PICTURES: tuple[Callable[[], Drawing], ...] = (
    flow, types, nesting, rules, solver, stages, schedules,
)  # fmt: skip


def main(folder: Path) -> None:
    """Write all of them."""
    for picture in PICTURES:
        (folder / f"{picture.__name__}.svg").write_text(str(picture()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
