"""Problem -> Assignment.  One solver per file; all take a `Problem` and give an `Assignment`."""

from autopar.solve.limit import hull, solve

__all__ = ["hull", "solve"]
