"""Users' names as Python: identifiers that we make."""

from __future__ import annotations

import builtins
import keyword
import unicodedata

WORDS = frozenset({*keyword.kwlist, "self", "torch", "F", "block", *dir(builtins)})
"""What no variable of emitted code is called."""
MEMBERS = frozenset(
    {"at", "each", "forward", "put", "recompute", "path_of", *dir(object)}
)  # fmt: skip
"""Attributes that emitted modules have themselves."""


def identifier(text: str) -> str:
    """An identifier, as Python reads it, that looks like the text."""
    normal = unicodedata.normalize("NFKC", text)
    name = "".join(c if f"_{c}".isidentifier() else "_" for c in normal)
    if not name.isidentifier():
        name = f"t_{name}".rstrip("_") if name.strip("_") else "t"
    return name


def is_attribute(name: str) -> bool:
    """Whether ``self.name`` is read as it is written, and is not a module's own."""
    return (
        name.isidentifier()
        and unicodedata.normalize("NFKC", name) == name
        and not keyword.iskeyword(name)
        and name not in MEMBERS
        and not name.startswith("_")
    )
