"""Names allowed in profiles: dtypes and operators.  Misspelt ones would have no effect."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from types import MappingProxyType

DTYPES = frozenset([
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2", "complex128", "complex64", "complex32",
    "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool", "int1",
    "int2", "int3", "int4", "int5", "int6", "int7", "uint1", "uint2", "uint3", "uint4", "uint5",
    "uint6", "uint7", "qint32", "qint8", "quint8", "quint4x2", "quint2x4", "bits16", "bits8",
    "bits4x2", "bits2x4", "bits1x8",
])  # fmt: skip
"""Torch's dtype names."""
KINDS = ("cpu", "cuda", "hpu", "mps", "mtia", "npu", "xla", "xpu")
"""Torch's device types; AMD's devices are ``cuda``, too."""
SPOKEN: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(["gpu", "nvidia", "amd", "rocm", "hip"], "cuda") | {"tpu": "xla", "gaudi": "hpu"}
)
"""Common alternative names."""
TIMED = frozenset([
    "linear", "scaled_dot_product_attention", "biased_attention", "cross_entropy", "embedding", "gelu",
    "silu", "tanh", "sigmoid", "exp", "log", "cos", "rsqrt", "pow", "softmax", "mean", "dropout", "add",
    "mul", "cat", "layer_norm", "rms_norm",
])  # fmt: skip
"""Operators for which calibration measures curves.  Attention with a differentiable bias is separate,
because no fused CPU kernel supports it."""
OWN = frozenset(["count_valid", "routed_experts"])
"""Operators defined by autopar."""


def is_operator(name: str) -> bool:
    """Return whether the name is an operator's: torch's, autopar's, or a library's with namespace."""
    if name in TIMED or name in OWN:
        return True
    namespace, _, own = name.rpartition(".")
    if namespace:
        return namespace.isidentifier() and own.isidentifier()
    import torch

    return name.isidentifier() and callable(getattr(torch.ops.aten, name, None))


def meant(name: str, known: Collection[str]) -> str:
    """Return a suggestion, ``Did you mean 'tanh'?``, or a few of the known names."""
    spoken = SPOKEN.get(name.lower())
    if spoken in known:
        return f"Did you mean {spoken!r}?"
    close = difflib.get_close_matches(name, sorted(known), 1, 0.5)
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(sorted(known))}."
