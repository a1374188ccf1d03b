"""All solvers by name, for ``autopar solve --solver``.

``SOLVERS.add("mine", mine)`` makes one of your own known (docs/extending.md).
"""

from __future__ import annotations

from typing import Protocol

from autopar.errors import InfeasibleError
from autopar.solver.brute_force import brute_force
from autopar.solver.prepared import solve
from autopar.solver.problem import Assignment, Limits, Problem
from autopar.utils.registry import Registry


class Solver(Protocol):
    """Finds the states of a problem's variables that cost least."""

    def __call__(self, problem: Problem, limits: Limits = None) -> Assignment:
        """An assignment within the limits, with a lower bound that no assignment undercuts.

        Raises `InfeasibleError` where none is within them.
        """


def _integer_program(problem: Problem, limits: Limits = None) -> Assignment:
    # OR-Tools' modelling layer takes a quarter of a second to load: not for every command.
    from autopar.solver.ilp import solve_ilp

    return solve_ilp(problem, limits)


def _every_assignment(problem: Problem, limits: Limits = None) -> Assignment:
    found = brute_force(problem, limits)
    if found is None:
        raise InfeasibleError("Of all assignments, none is finite and within the limits.")
    return found


SOLVERS: Registry[Solver] = Registry(
    "solver",
    {"elimination": solve, "ilp": _integer_program, "brute-force": _every_assignment},
)
