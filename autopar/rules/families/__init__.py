"""The declarations, by family.  Importing this package fills the register."""

from autopar.rules.families import (
    attention,
    contraction,
    convolution,
    elementwise,
    indexing,
    loss,
    normalisation,
    reduction,
    shape,
    views,
)

__all__ = [
    "attention", "contraction", "convolution", "elementwise", "indexing", "loss", "normalisation",
    "reduction", "shape", "views",
]  # fmt: skip
