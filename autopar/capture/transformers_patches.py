"""Patches `transformers` during a trace, so that it takes code paths that can be captured.

Nothing that a model computes changes. Each patch selects one of the library's ways to compute the
same function, replaces an ``autograd.Function`` by a function with the same gradient, or draws
random numbers with torch instead of NumPy.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from autopar.capture import _torch
from autopar.capture.spec_augment import spans_drawn_by_torch
from autopar.ops.expert_rows import CLAMPED_SWIGLU
from autopar.ops.experts import routed_experts


@contextlib.contextmanager
def transformers_told() -> Iterator[None]:
    """Within the context, apply all patches of the library."""
    with (
        _masks_looked_at(),
        _experts_as_one(),
        _groups_without_kernel(),
        _plain_gelu(),
        spans_drawn_by_torch(),
    ):
        yield


@contextlib.contextmanager
def synchronised_norms() -> Iterator[None]:
    """Within the context, `SyncBatchNorm` is a batch norm: a captured batch is the whole batch."""
    with _replaced("torch.nn", "SyncBatchNorm.forward", lambda _: nn.BatchNorm1d.forward):
        yield


@contextlib.contextmanager
def _replaced(module: str, name: str, made: Callable[[Any], Any]) -> Iterator[None]:
    """Replace a name by `made(original)`, if the library has been imported and has that name."""
    *path, last = name.split(".")
    owner: Any = sys.modules.get(module)
    for part in path:
        owner = getattr(owner, part, None)
    original = getattr(owner, last, None)
    if original is None:
        yield
        return
    setattr(owner, last, made(original))
    try:
        yield
    finally:
        setattr(owner, last, original)


def _masks_looked_at() -> contextlib.AbstractContextManager[None]:
    """Let the library skip masks (for ``is_causal=True``) after it has read the position ids.

    It does not try that with a fake tensor, but the values of ours may be known.
    """

    def answer(ask: Any) -> Any:
        def is_tracing(tensor: Any = None) -> bool:
            return bool(ask() if _torch.known_value(tensor) is not None else ask(tensor))

        return is_tracing

    return _replaced("transformers.masking_utils", "is_tracing", answer)


def _groups_without_kernel() -> contextlib.AbstractContextManager[None]:
    """Use the kernel for grouped products only with bfloat16: it knows no other dtype's shapes."""

    def answer(ask: Any) -> Any:
        def can_use(read: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> bool:
            return weight.dtype == torch.bfloat16 and bool(ask(read, weight, offs))

        return can_use

    return _replaced("transformers.integrations.moe", "_can_use_grouped_mm", answer)


def _experts_as_one() -> contextlib.AbstractContextManager[None]:
    """Record experts of the usual kind as one operator, however the model multiplies by them."""

    def answer(ask: Any) -> Any:
        def get_interface(interface: Any, implementation: Any, default: Any) -> Any:
            found = ask(interface, implementation, default)

            def forward(experts: Any, *args: Any, **kwargs: Any) -> Any:
                read = _read(experts)
                if read is None or kwargs or len(args) != 3:
                    return found(experts, *args, **kwargs)
                return routed_experts(*args, *read)

            return forward

        return get_interface

    return _replaced("transformers.integrations.moe", "ExpertsInterface.get_interface", answer)


def _read(experts: Any) -> tuple[Any, ...] | None:
    """Return what `routed_experts` reads of a module's experts; None for experts of another form."""
    activation, constants = _activation(experts)
    odd = experts._is_expert_parallel or getattr(experts, "has_post_expert_norm", False)
    if activation is None or odd:
        return None
    name = "gate_up_proj" if experts.has_gate else "up_proj"
    up, down = getattr(experts, name), experts.down_proj
    if experts.is_transposed:
        up, down = up.transpose(1, 2), down.transpose(1, 2)
    if not (experts.has_bias or constants):
        return up, down, activation
    biases = (getattr(experts, f"{name}_bias"), experts.down_proj_bias) if experts.has_bias else ()
    return up, down, activation, *(biases or (None, None)), constants


def _activation(experts: Any) -> tuple[str | None, tuple[float, ...]]:
    """Return autopar's name of what stands between the experts' products, with its constants.

    The name is None for one that autopar has not.
    """
    moe: Any = sys.modules["transformers.integrations.moe"]
    gate = type(experts)._apply_gate
    if gate is moe._default_apply_gate and experts.is_concatenated:
        return _name_of(getattr(experts, "act_fn", None)), ()
    gpt_oss: Any = sys.modules.get("transformers.models.gpt_oss.modeling_gpt_oss")
    if gpt_oss is not None and gate is gpt_oss.GptOssExperts._apply_gate:
        return CLAMPED_SWIGLU, (float(experts.alpha), float(experts.limit))
    return None, ()


def _name_of(activation: Any) -> str | None:
    """Return autopar's name of an activation module of the library."""
    kind = type(activation).__name__
    if kind == "GELUActivation":
        return "gelu" if activation.act is nn.functional.gelu else None
    if kind == "GELUTanh":
        python = getattr(activation.act, "__name__", "") == "_gelu_tanh_python"
        return None if python else "gelu_tanh"
    return _NAMES.get(kind)


_NAMES = {
    "SiLUActivation": "silu", "SiLU": "silu", "ReLU": "relu", "ReLUSquaredActivation": "relu_squared",
}  # fmt: skip


class _PlainGelu:
    """BLOOM's GELU without its own gradient, which equals that of its forward to twelve digits."""

    def __init__(self, forward: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.apply = forward


def _plain_gelu() -> contextlib.AbstractContextManager[None]:
    bloom = "transformers.models.bloom.modeling_bloom"
    return _replaced(
        bloom, "GeLUFunction", lambda _: _PlainGelu(sys.modules[bloom].bloom_gelu_forward)
    )
