"""Keeps inference tensors out of the state that outlives a call.

Autograd refuses every tensor that was created inside ``torch.inference_mode()``, also afterwards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def normal_tensors() -> Iterator[None]:
    """Create normal tensors inside, even in inference mode; grad mode is unchanged."""
    recording = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(recording):
        yield


def outside_inference(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function` wrapped so that it runs outside of inference mode."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.is_inference_mode_enabled():
            return function(*args, **kwargs)
        with normal_tensors():
            return function(*args, **kwargs)

    return run
