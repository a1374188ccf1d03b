"""Problem -> Assignment.  One solver per file; all take a `Problem` and give an `Assignment`."""

from autopar.solve.elimination import eliminate
from autopar.solve.limit import within

__all__ = ["eliminate", "within"]
