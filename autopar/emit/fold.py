"""Folds equal blocks into loops, so that each distinct block is written once, as a class.

A block is a run of consecutive statements of one numbered module.  Two blocks share a class if their
bodies are equal apart from the block's number: the same operators, arguments, shardings and
conversions, the same uses of values from outside, and the same outputs.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autopar.emit.statement import Part, Statement, Value, Weight
from autopar.ir.blocks import FEWEST, Recompute, block_of


@dataclass(frozen=True, slots=True)
class Block:
    """One block: its statements, the inputs from outside, and the outputs that are read later."""

    prefix: str
    index: int
    body: tuple[Statement, ...]
    inputs: tuple[Value | Weight, ...]
    outputs: tuple[Value, ...]
    key: str
    recompute: Recompute

    @property
    def path(self) -> str:
        """The path of its module."""
        return f"{self.prefix}.{self.index}"


@dataclass(frozen=True, slots=True)
class Loop:
    """Consecutive equal blocks; each input is an output of the previous block, or equal for all blocks.

    `carried[i]` is the index of the output that becomes input i of the next block, or None.
    """

    blocks: tuple[Block, ...]
    carried: tuple[int | None, ...]


Item = Statement | Loop


def fold(
    statements: tuple[Statement, ...],
    results: tuple[Value, ...],
    recompute: Mapping[str, Recompute] | None = None,
) -> tuple[Item, ...]:
    """Return the statements outside blocks, and loops over equal blocks, in order."""
    modes = recompute or {}
    pieces = [
        (where, tuple(run))
        for where, run in itertools.groupby(statements, key=lambda s: block_of(s.origin))
    ]
    readers = _readers(pieces, results)
    items: list[Item] = []
    for position, (where, body) in enumerate(pieces):
        if where is None or not _worth_a_class(where[0], pieces):
            items.extend(body)
            continue
        mode = modes.get(f"{where[0]}.{where[1]}", "none")
        block = _block(where, body, position, readers, mode)
        last = items[-1] if items else None
        longer = _extended(last, block, position, readers) if isinstance(last, Loop) else None
        if longer is not None:
            items[-1] = longer
        else:
            items.append(Loop((block,), (None,) * len(block.inputs)))
    return tuple(_without_trifles(items))


def _without_trifles(items: list[Item]) -> Iterator[Item]:
    """Inline each short block that occurs once, which is more readable than a class."""
    loops = [item for item in items if isinstance(item, Loop)]
    uses = Counter(loop.blocks[0].key for loop in loops for _ in loop.blocks)
    for item in items:
        block = item.blocks[0] if isinstance(item, Loop) else None
        if block is not None and uses[block.key] == 1 and _made(block) < FEWEST:
            yield from block.body
        else:
            yield item


def _made(block: Block) -> int:
    """Return the number of values that a block makes: weights gathered together count one by one."""
    return sum(len(statement.targets) for statement in block.body)


Pieces = list[tuple[tuple[str, int] | None, tuple[Statement, ...]]]
Readers = dict[Value, set[int]]


def _worth_a_class(prefix: str, pieces: Pieces) -> bool:
    return sum(where is not None and where[0] == prefix for where, _ in pieces) > 1


def _readers(pieces: Pieces, results: tuple[Value, ...]) -> Readers:
    """Return the positions of the pieces that read each value; results are read after the last one."""
    readers: defaultdict[Value, set[int]] = defaultdict(set)
    for position, (_, body) in enumerate(pieces):
        for statement in body:
            for value in statement.reads:
                readers[value].add(position)
    for value in results:
        readers[value].add(len(pieces))
    return readers


def _block(
    where: tuple[str, int],
    body: tuple[Statement, ...],
    position: int,
    readers: Readers,
    recompute: Recompute,
) -> Block:
    prefix, index = where
    made = [value for statement in body for value in statement.targets]
    outputs = tuple(value for value in made if readers[value] - {position})
    inputs: dict[Value | Weight, None] = {}
    inside = set(made)
    home = f"{prefix}.{index}."
    for part in (part for statement in body for part in statement.parts):
        if isinstance(part, Value) and part not in inside:
            inputs[part] = None
        if isinstance(part, Weight) and not part.path.startswith(home):
            inputs[part] = None
    key = f"{recompute}\n{_key(body, tuple(inputs), outputs, home)}"
    return Block(prefix, index, body, tuple(inputs), outputs, key, recompute)


def _key(
    body: tuple[Statement, ...],
    inputs: tuple[Value | Weight, ...],
    outputs: tuple[Value, ...],
    home: str,
) -> str:
    """Return the body as text with each name replaced by its origin; it is equal for equal blocks."""
    names: dict[Part, str] = {value: f"<in {i}>" for i, value in enumerate(inputs)}
    lines = []
    for number, statement in enumerate(body):
        for place, value in enumerate(statement.targets):
            names[value] = f"<{number}.{place}>"
        text = "".join(
            part
            if isinstance(part, str)
            else names.get(part) or f"<own {part.path.removeprefix(home)}>"  # type: ignore[union-attr]
            for part in statement.parts
        )
        frees = ", ".join(names[value] for value in statement.frees if value in names)
        lines.append(f"{text} # {statement.comment} # {frees}")
    return "\n".join([*lines, *(names[value] for value in outputs)])


def _extended(loop: Loop, block: Block, position: int, readers: Readers) -> Loop | None:
    """Return the loop with one more block, or None if the block does not continue it.

    After a loop only the outputs of its last block exist, so nothing else may read those of earlier
    blocks.
    """
    before = loop.blocks[-1]
    if (block.prefix, block.index, block.key) != (before.prefix, before.index + 1, before.key):
        return None
    if any(readers[value] - {position - 1, position} for value in before.outputs):
        return None
    carried: list[int | None] = []
    for previous, current in zip(before.inputs, block.inputs, strict=True):
        if current in before.outputs:
            carried.append(before.outputs.index(current))
        elif current == previous:
            carried.append(None)
        else:
            return None
    if len(loop.blocks) > 1 and tuple(carried) != loop.carried:
        return None
    return Loop((*loop.blocks, block), tuple(carried))
