"""Everything that is shown to people: values in, rich renderables or text out; nothing prints."""

from autopar.show.beside import step_beside
from autopar.show.changes import changed, show_difference
from autopar.show.checks import checks
from autopar.show.contenders import contenders
from autopar.show.cost import communication, costs, header
from autopar.show.differences import differences
from autopar.show.explanation import explanation
from autopar.show.fold import Block, Row, fold
from autopar.show.landscape import landscape_grid, landscape_table
from autopar.show.operators import conversions, operators
from autopar.show.parameters import parameters
from autopar.show.pins import pins
from autopar.show.pipeline import show_pipeline
from autopar.show.plan import show_block, show_operators, show_plan
from autopar.show.played import show_played
from autopar.show.profile import timings
from autopar.show.proof import proof
from autopar.show.rules import coverage_line, rule_report, rules_table
from autopar.show.shares import shares
from autopar.show.solution import curve, solution
from autopar.show.table import to_text
from autopar.show.tensor import show_tensor
from autopar.show.units import nbytes, seconds
from autopar.show.verdicts import verdicts
from autopar.show.words import words

__all__ = [
    "Block",
    "Row",
    "changed",
    "checks",
    "communication",
    "contenders",
    "conversions",
    "costs",
    "coverage_line",
    "curve",
    "differences",
    "explanation",
    "fold",
    "header",
    "landscape_grid",
    "landscape_table",
    "nbytes",
    "operators",
    "parameters",
    "pins",
    "proof",
    "rule_report",
    "rules_table",
    "seconds",
    "shares",
    "show_block",
    "show_difference",
    "show_operators",
    "show_pipeline",
    "show_plan",
    "show_played",
    "show_tensor",
    "solution",
    "step_beside",
    "timings",
    "to_text",
    "verdicts",
    "words",
]  # fmt: skip
