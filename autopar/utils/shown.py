"""Base class of values that `print` and notebooks show as tables.

Values cannot import their renderer, because it belongs to a higher layer.  The renderer is registered by
module name and imported when a value is first shown.
"""

from __future__ import annotations

from importlib import import_module

RENDERERS: list[str] = []
"""Modules whose functions ``text`` and ``html`` render a value; the last one registered is used."""


class Shown:
    """A value that is shown as the command line's table, in text or HTML."""

    def __str__(self) -> str:
        return self._rendered("text")

    def _repr_html_(self) -> str:
        return self._rendered("html")

    def _rendered(self, how: str) -> str:
        text: str = getattr(import_module(RENDERERS[-1]), how)(self)
        return text
