"""Expands einsum equations to one name per dim, including ellipses and implicit outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

Letters = tuple[str, ...]


def equation(text: str, shapes: Sequence[tuple[int, ...]]) -> tuple[tuple[Letters, ...], Letters]:
    """Return the names of the dims of each operand and of the output, as `torch.einsum` reads them.

    Lower-case letters are kept, upper-case ones become ``upper_a``; ``...`` becomes ``dots0, dots1``.
    """
    before, arrow, after = text.replace(" ", "").partition("->")
    words = before.split(",")
    widest = max(
        (
            len(shape) - len(word) + 3
            for word, shape in zip(words, shapes, strict=True)
            if "." in word
        ),
        default=0,
    )
    read = tuple(
        _spelled(word, len(shape) - len(word) + 3, widest)
        for word, shape in zip(words, shapes, strict=True)
    )
    if arrow:
        return read, _spelled(after, widest, widest)
    once = sorted(letter for letter, count in Counter(before).items() if count == 1)
    implicit = "".join(letter for letter in once if letter.isalpha())
    return read, _spelled("..." + implicit, widest, widest)


def _spelled(word: str, dots: int, widest: int) -> Letters:
    """Return the dims of one term; an ellipsis takes the remaining dims, aligned to the right."""
    head, found, tail = word.partition("...")
    middle = [f"dots{i}" for i in range(widest - dots, widest)] if found else []
    return (*map(_name, head), *middle, *map(_name, tail))


def _name(letter: str) -> str:
    return letter if letter.islower() else f"upper_{letter.lower()}"
