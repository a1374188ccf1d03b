"""Removes results of a capture from `functools.lru_cache` caches, which outlive it."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any

from torch import nn

CACHE = type(functools.lru_cache(lambda: None))


@contextlib.contextmanager
def forgotten(model: nn.Module) -> Iterator[None]:
    """Clear the caches that were filled inside the context: traced tensors in them are useless later."""
    before = [(cache, cache.cache_info().misses) for cache in caches(model)]
    try:
        yield
    finally:
        for cache, misses in before:
            if cache.cache_info().misses != misses:
                cache.cache_clear()


def caches(model: nn.Module) -> list[Any]:
    """Return caches around methods of the model's classes, in their Python modules and in attributes."""
    kinds = {kind for module in model.modules() for kind in type(module).__mro__}
    places: list[Mapping[str, Any]] = [
        vars(kind) for kind in kinds if kind.__module__ != "torch.nn.modules.module"
    ]
    names = {kind.__module__ for kind in kinds if not kind.__module__.startswith("torch.")}
    places += [vars(sys.modules[name]) for name in sorted(names) if name in sys.modules]
    places += [vars(module) for module in model.modules()]
    found = {
        id(cache): cache for place in places for value in place.values() for cache in _in(value)
    }
    return list(found.values())


def _in(value: object) -> Iterator[Any]:
    """Yield the cache that a value is, or that it wraps, as with the decorator of transformers."""
    value = getattr(value, "__func__", value)  # of a static or class method
    if isinstance(value, CACHE):
        yield value
    elif isinstance(value, FunctionType):
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):  # cell not filled yet
                if isinstance(cell.cell_contents, CACHE):
                    yield cell.cell_contents
