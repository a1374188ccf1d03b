"""Tells whose code is inspected: the user's, not that of libraries."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from autopar.capture.python_state import is_library

INSTALLED = ("site-packages", "dist-packages")


class Libraries:
    """Modules whose code is not inspected: libraries, and installed packages except the model's own.

    A model of an installed package (peft, timm) reaches thousands of functions in packages that it uses
    for files and downloads (huggingface_hub, fsspec), of which forward runs none.
    """

    def __init__(self, own: Iterable[str]) -> None:
        """`own`: modules of the model's classes and of the functions that a step calls."""
        self._own = {_package(module) for module in own}
        self._known: dict[str, bool] = {}

    def __contains__(self, module: object) -> bool:
        name = str(module)
        if name not in self._known:
            package = _package(name)
            is_other = package not in self._own and is_installed(package)
            self._known[name] = is_other or is_library(name)
        return self._known[name]


def is_installed(module: str) -> bool:
    """Whether a module lies where packages are installed."""
    found = sys.modules.get(module)
    places = [getattr(found, "__file__", None) or "", *map(str, getattr(found, "__path__", ()))]
    return any(part in place for part in INSTALLED for place in places)


def _package(module: str) -> str:
    return module.partition(".")[0]
