"""Problem -> Assignment.  One concept per file; all take a `Problem` and give an `Assignment`.

`ilp.solve_ilp` is imported from its own file, as OR-Tools' modelling layer takes a while to load.
"""

from autopar.solver.alternatives import best_with_each_state
from autopar.solver.completion import completed
from autopar.solver.dual import readable
from autopar.solver.hull import corners, hull
from autopar.solver.prepared import PreparedProblem, solve

__all__ = [
    "PreparedProblem",
    "best_with_each_state",
    "completed",
    "corners",
    "hull",
    "readable",
    "solve",
]
