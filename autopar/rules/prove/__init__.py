"""Proves rules: runs an operator on shards, combines the results by type, compares with the whole."""

from autopar.rules.prove.check import Outcome, Reference, Runner, check, reference, run, wide
from autopar.rules.prove.simulate import TOLERANCE, WrongError, dual, error, gather, scatter

__all__ = [
    "TOLERANCE", "Outcome", "Reference", "Runner", "WrongError", "check", "dual", "error", "gather",
    "reference", "run", "scatter", "wide",
]  # fmt: skip
