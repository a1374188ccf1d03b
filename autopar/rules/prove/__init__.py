"""The proof of a rule: run the operator on shards, combine by the types, compare with the whole."""

from autopar.rules.prove.check import Outcome, Reference, Runner, check, reference, run, wide
from autopar.rules.prove.simulate import TOLERANCE, WrongError, dual, error, gather, scatter

__all__ = [
    "TOLERANCE", "Outcome", "Reference", "Runner", "WrongError", "check", "dual", "error", "gather",
    "reference", "run", "scatter", "wide",
]  # fmt: skip
