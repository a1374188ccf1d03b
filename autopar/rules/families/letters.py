"""Factor names for dims, and terms that most declarations use."""

from __future__ import annotations

from collections.abc import Sequence


def names(count: int) -> list[str]:
    """Return one factor per dim: d0, d1, ..."""
    return [f"d{i}" for i in range(count)]


def term(dims: Sequence[str]) -> str:
    """Return the dims as text; a scalar is ``()``."""
    return " ".join(dims) or "()"


def broadcast(
    shape: tuple[int, ...], out: tuple[int, ...], letters: Sequence[str] | None = None
) -> str:
    """Return the term of `shape`, aligned to the right of `out`; broadcast dims of size one are 1."""
    letters = letters or names(len(out))
    offset = len(out) - len(shape)
    return term(
        [
            "1" if size == 1 and out[offset + dim] != 1 else letters[offset + dim]
            for dim, size in enumerate(shape)
        ]
    )


def keep_whole(letters: Sequence[str], dims: Sequence[int]) -> list[str]:
    """Return the letters, with `!` appended to those of these dims, which must stay whole."""
    kept = {dim % len(letters) for dim in dims} if letters else set()
    return [f"{name}!" if i in kept else name for i, name in enumerate(letters)]
