"""Random models from a grammar of layers, to be planned and trained like any other."""

from tests.fuzz.grammar import model

__all__ = ["model"]
