"""Problem -> Assignment.  One concept per file; all take a `Problem` and give an `Assignment`.

`ilp.solve_ilp` is imported from its own file, as OR-Tools' modelling layer takes a while to load.
"""

from autopar.solve.alternatives import best_with_each_state
from autopar.solve.completion import completed
from autopar.solve.dual import readable
from autopar.solve.hull import corners, hull
from autopar.solve.ready import Ready, solve

__all__ = ["Ready", "best_with_each_state", "completed", "corners", "hull", "readable", "solve"]
