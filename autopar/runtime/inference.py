"""What stays after a call is made of tensors that later steps can train with.

Inside ``torch.inference_mode()`` every new tensor is one that autograd refuses ever after.
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
    """Within, tensors are such as outside of inference mode; gradients stay on or off."""
    recording = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(recording):
        yield


def outside_inference(function: Callable[P, R]) -> Callable[P, R]:
    """A function that runs as outside of inference mode."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.is_inference_mode_enabled():
            return function(*args, **kwargs)
        with normal_tensors():
            return function(*args, **kwargs)

    return run
