"""Problem -> Assignment.  One solver per file; all take a `Problem` and give an `Assignment`."""

from autopar.solve.ilp import solve_ilp
from autopar.solve.limit import hull, readable, solve

__all__ = ["hull", "readable", "solve", "solve_ilp"]
