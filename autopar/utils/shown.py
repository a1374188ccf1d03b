"""Values that `print` and a notebook show as tables.

Values lie below what renders them.  A renderer is registered by the name of its module, and is imported
when somebody prints a value.
"""

from __future__ import annotations

from importlib import import_module

RENDERERS: list[str] = []
"""The module whose functions ``text`` and ``html`` render a value; `autopar` itself registers it."""


class Shown:
    """A value with a table: what the command line prints of it, as text and as HTML."""

    def __str__(self) -> str:
        return self._rendered("text")

    def _repr_html_(self) -> str:
        return self._rendered("html")

    def _rendered(self, how: str) -> str:
        text: str = getattr(import_module(RENDERERS[-1]), how)(self)
        return text
