"""Rules of tensors created from one number: every rank creates its own part."""

from __future__ import annotations

from autopar.rules.declare import Call, Declared, rule
from autopar.rules.families.letters import names, term


@rule("full", "zeros", "ones")
def constant(call: Call) -> Declared:
    """The size is written anew for each rank (`autopar/rules/local.py`)."""
    return Declared(f" -> {term(names(len(call.made[0])))}")
