"""Explains a plan's choice for one operator, parameter or module: the alternatives and their costs.

target      finds the operator, parameter or module that a name means
ways        the alternatives, as states of the problem's variables
replanner   the best plan that contains an alternative, with all else re-optimized
average     a stage's numbers, averaged per microbatch
sentences   the first sentence of the explanation
explain     the whole explanation
stage       the same within a stage of a pipeline
explained   the entry point, from a model and its plan
"""

from autopar.explain.explain import ROWS, explain
from autopar.explain.explained import explain_plan
from autopar.explain.stage import explain_stage

__all__ = ["ROWS", "explain", "explain_plan", "explain_stage"]
