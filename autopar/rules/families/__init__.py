"""Declared sharding rules, by family of operators.  Importing this package registers them."""

from autopar.rules.families import (
    attention,
    contraction,
    convolution,
    creation,
    elementwise,
    experts,
    indexing,
    loss,
    normalisation,
    recurrent,
    reduction,
    sampling,
    scatter,
    shape,
    views,
)

__all__ = [
    "attention", "contraction", "convolution", "creation", "elementwise", "experts", "indexing", "loss",
    "normalisation", "recurrent", "reduction", "sampling", "scatter", "shape", "views",
]  # fmt: skip
