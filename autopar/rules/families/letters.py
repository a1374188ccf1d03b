"""Factor names for dims, and the terms that most declarations are made of."""

from __future__ import annotations

from collections.abc import Sequence


def names(count: int) -> list[str]:
    """d0, d1, ... one factor per dim."""
    return [f"d{i}" for i in range(count)]


def term(dims: Sequence[str]) -> str:
    """Dims as text; a scalar is ``()``."""
    return " ".join(dims) or "()"


def broadcast(
    shape: tuple[int, ...], out: tuple[int, ...], letters: Sequence[str] | None = None
) -> str:
    """A term of `shape` aligned to the right of `out`; dims of size one that are stretched are 1."""
    letters = letters or names(len(out))
    offset = len(out) - len(shape)
    return term(
        [
            "1" if size == 1 and out[offset + dim] != 1 else letters[offset + dim]
            for dim, size in enumerate(shape)
        ]
    )


def keep_whole(letters: Sequence[str], dims: Sequence[int]) -> list[str]:
    """The letters with `!` behind those of these dims."""
    kept = {dim % len(letters) for dim in dims} if letters else set()
    return [f"{name}!" if i in kept else name for i, name in enumerate(letters)]
