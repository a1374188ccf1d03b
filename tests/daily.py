"""Which of many cases run every day; the others run in the slow set."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def daily(every: Iterable[Any], some: Collection[Any]) -> list[Any]:
    """All cases of a parametrisation; those that are not among `some` are marked slow."""
    return [case if case in some else _slow(case) for case in every]


def _slow(case: Any) -> Any:
    values = case if isinstance(case, tuple) and not hasattr(case, "_fields") else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)
