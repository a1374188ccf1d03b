"""A plan, its problem and a name -> `Explanation`: what else was possible there, and what it would cost.

target      which operator, parameter or module a name means
ways        what could be done with it, as states of the problem's variables
again       the best plan with a way: everything else is decided anew
average     a stage's figures, for one of its microbatches
sentences   the first sentence, in plain words
explain     all of it
stage       the same within a stage of a pipeline
explained   from a model and its plan to all of it
"""

from autopar.explain.explain import ROWS, explain
from autopar.explain.explained import explain_plan
from autopar.explain.stage import explain_stage

__all__ = ["ROWS", "explain", "explain_plan", "explain_stage"]
