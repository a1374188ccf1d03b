"""Values that a notebook shows as tables; `autopar.show.html` draws them."""

from __future__ import annotations

from importlib import import_module


class Shown:
    """A value with a drawing: what the command line would print of it, as HTML."""

    def _repr_html_(self) -> str:
        # Values lie below what draws them, so that is looked up when a notebook asks.
        text: str = import_module("autopar.show.html").html(self)
        return text
