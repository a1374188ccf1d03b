"""Recomputation: a block drops its activations, and runs again when the backward needs them.

Collectives of the block run again as well, up to the last tensor that the backward needs.
"""

from __future__ import annotations

import contextvars
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from autopar.ops.operators import dear_kernels
from autopar.runtime import deferred

Forward = Callable[..., Any]
Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]


def run(forward: Forward, mode: str, args: tuple[Any, ...]) -> Any:
    """Return `forward(*args)`, recomputed in the backward according to `mode` ("selective", "full")."""
    if not torch.is_grad_enabled():
        return forward(*args)
    here = contextvars.copy_context()
    passes = itertools.chain([False], itertools.repeat(True))

    def once(*args: Any) -> Any:
        # The backward may run in another thread, and always runs outside of the forward's contexts.
        if next(passes):
            return here.copy().run(_again, forward, args)
        with deferred.at_once():
            return forward(*args)

    contexts = _selective if mode == "selective" else _nothing
    return checkpoint(once, *args, use_reentrant=False, context_fn=contexts)


def _again(forward: Forward, args: tuple[Any, ...]) -> Any:
    with deferred.at_once():
        return forward(*args)


def _nothing() -> Contexts:
    return nullcontext(), nullcontext()


def _selective() -> Contexts:
    contexts: Contexts = create_selective_checkpoint_contexts(_policy)
    return contexts


def _policy(_: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    kept = operator in dear_kernels()
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE
