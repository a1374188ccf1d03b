"""Bytes that training keeps besides activations (Rajbhandari et al. 2020, section 3.1)."""

from __future__ import annotations

from cost_models.errors import CostModelError

_ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
_STATES = {
    "SGD": 0,
    "SGDMomentum": 1,
    "Adagrad": 1,
    "RMSprop": 1,
    "Adam": 2,
    "AdamW": 2,
    "NAdam": 2,
}
"""Tensors of the parameter's size that each optimizer keeps."""


def optimizer_state_bytes(optimizer: str, numel: int, dtype: str) -> int:
    """Bytes of optimizer state for `numel` parameters of this dtype."""
    if optimizer not in _STATES:
        raise CostModelError(
            f"The state of optimizer {optimizer!r} is unknown; known are {', '.join(_STATES)}."
        )
    if dtype not in _ITEMSIZE or numel < 0:
        raise CostModelError(f"No optimizer state for {numel} parameters of {dtype!r}.")
    return _STATES[optimizer] * numel * _ITEMSIZE[dtype]
