"""Problem -> Assignment.  One solver per file; all take a `Problem` and give an `Assignment`."""

from autopar.solve.completion import completed
from autopar.solve.ilp import solve_ilp
from autopar.solve.limit import Ready, best_with_each_state, hull, readable, solve

__all__ = ["Ready", "best_with_each_state", "completed", "hull", "readable", "solve", "solve_ilp"]
