"""The declarations, by family.  Importing this package fills the register."""

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
