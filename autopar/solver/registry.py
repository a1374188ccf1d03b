"""All solvers by name, for ``autopar solve --solver``.

``SOLVERS.add("mine", mine)`` registers your own, and `solve_with` runs it (docs/extending.md).
"""

from __future__ import annotations

from typing import Protocol

from autopar.errors import InfeasibleError
from autopar.solver.brute_force import brute_force
from autopar.solver.checked_answer import check_answer
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


class Solvers(Registry[Solver]):
    """The solvers by name."""

    def fault(self, name: str, value: Solver) -> str:
        """Return why a solver cannot be added, or ""."""
        return (
            "" if callable(value) else f"has to be a function of (problem, limits), not {value!r}"
        )


SOLVERS = Solvers(
    "solver", {"elimination": solve, "ilp": _integer_program, "brute-force": _every_assignment}
)


def solve_with(name: str, problem: Problem, limits: Limits = None) -> Assignment:
    """Return the answer of the solver called `name`, which is checked against the problem.

    Raises `InputError` for an unknown name, `InfeasibleError` if the solver finds that no assignment
    is within the limits, and `PlanError` if its answer is wrong.
    """
    found = SOLVERS.named(name)(problem, limits)
    check_answer(name, problem, limits, found)
    return found
