"""Recomputation: a block drops its activations, and runs again when the backward needs them.

Collectives of the block run again as well, up to the last tensor that the backward needs.
"""

from __future__ import annotations

import contextvars
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from autopar.runtime import deferred
from autopar.runtime.ahead import Ahead
from autopar.runtime.selective import is_kept, selective

Forward = Callable[..., Any]
Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]


def run(forward: Forward, mode: str, args: tuple[Any, ...], ahead: Ahead | None = None) -> Any:
    """Return `forward(*args)`, recomputed in the backward according to `mode` ("selective", "full").

    `ahead`: the gather of the block's weights, which starts before the block runs.
    """
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

    def contexts() -> Contexts:
        first, again = selective() if mode == "selective" else _nothing()
        return first, again if ahead is None else _Again(ahead, again)

    return checkpoint(once, *args, use_reentrant=False, context_fn=contexts)


@dataclass(frozen=True)
class _Again(AbstractContextManager[Any]):
    """Of a second run, or of several where the graph is retained: its gathers start before it."""

    ahead: Ahead
    inner: AbstractContextManager[Any]

    def __enter__(self) -> Any:
        self.ahead.start_again()
        return self.inner.__enter__()

    def __exit__(self, *raised: Any) -> bool | None:
        return self.inner.__exit__(*raised)


def _again(forward: Forward, args: tuple[Any, ...]) -> Any:
    with deferred.at_once():
        return forward(*args)


def within_graph(forward: Forward, mode: str, regathers: bool) -> Forward:
    """Return a block's forward with its recomputation inside, for a compiler to see.

    Compiled graphs save no tensors by hooks, so gathers are repeated by recomputing them alone.
    """
    if mode == "none" and not regathers:
        return forward
    policies = {"none": _gathers_again, "selective": _selective}
    options = {"context_fn": policies[mode]} if mode in policies else {}

    def run(self: Any, *args: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(self, *args)

        def once(*args: Any) -> Any:
            return forward(self, *args)

        return checkpoint(once, *args, use_reentrant=False, **options)  # type: ignore[arg-type]

    return run


def _gathers_again() -> Contexts:
    contexts: Contexts = create_selective_checkpoint_contexts(_gathers_policy)
    return contexts


def _gathers_policy(_: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Recompute gathers and views, which would keep what was gathered."""
    is_view = any(each.alias_info is not None for each in operator._schema.returns)
    if is_view or operator is torch.ops.autopar.all_gather.default:
        return CheckpointPolicy.MUST_RECOMPUTE
    return CheckpointPolicy.PREFER_SAVE


def _nothing() -> Contexts:
    return nullcontext(), nullcontext()


def _selective() -> Contexts:
    contexts: Contexts = create_selective_checkpoint_contexts(_policy)
    return contexts


def _policy(_: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    kept = is_kept(operator)
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE
