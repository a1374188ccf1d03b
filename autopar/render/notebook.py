"""Values that `print` and a notebook show as tables; `autopar.render.text.html` draws them."""

from __future__ import annotations

from importlib import import_module


class Shown:
    """A value with a drawing: what the command line would print of it, as text and as HTML."""

    def __str__(self) -> str:
        return self._drawn("text")

    def _repr_html_(self) -> str:
        return self._drawn("html")

    def _drawn(self, how: str) -> str:
        # Values lie below what draws them, so that is looked up when somebody asks.
        text: str = getattr(import_module("autopar.render.text.html"), how)(self)
        return text
