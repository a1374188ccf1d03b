"""Converts values to rich renderables or text for the console; nothing here prints."""

from autopar.explain.pins import pins
from autopar.explain.words import words
from autopar.ir.units import nbytes, seconds
from autopar.plans.differences import differences
from autopar.render.text.beside import step_beside
from autopar.render.text.changes import changed, show_difference
from autopar.render.text.checks import checks
from autopar.render.text.contenders import contenders
from autopar.render.text.cost import communication, costs, header
from autopar.render.text.explanation import explanation
from autopar.render.text.fold import Block, Row, fold
from autopar.render.text.landscape import landscape_grid, landscape_table
from autopar.render.text.operators import conversions, operators
from autopar.render.text.parameters import parameters
from autopar.render.text.pipeline import show_pipeline
from autopar.render.text.plan import show_block, show_operators, show_plan
from autopar.render.text.played import show_played
from autopar.render.text.profile import timings
from autopar.render.text.proof import proof
from autopar.render.text.rules import coverage_line, rule_report, rules_table
from autopar.render.text.shares import shares
from autopar.render.text.solution import curve, solution
from autopar.render.text.table import to_text
from autopar.render.text.tensor import show_tensor
from autopar.render.text.tuned import show_tuned
from autopar.render.text.verdicts import verdicts

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
    "show_tuned",
    "solution",
    "step_beside",
    "timings",
    "to_text",
    "verdicts",
    "words",
]  # fmt: skip
