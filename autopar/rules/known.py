"""Lists all rules known to this process or in its cache."""

from __future__ import annotations

from autopar.rules.declare import declaration, registered
from autopar.rules.discover import discovered
from autopar.rules.discover.store import everything
from autopar.rules.user import user_rules

Row = tuple[str, str, str]


def known_rules() -> tuple[Row, ...]:
    """Return (operator, source, rule or description): declared, then the user's, then discovered."""
    declared = [(op, "declared", _said(op)) for op in registered()]
    users = [(rule.op, "user", rule.declared.text) for rule in user_rules()]
    findings = [(key["op"], finding) for key, finding in everything()]
    findings += [(d.op, d.finding) for d in discovered() if d.origin == "experiment"]
    found = [
        (op, "discovered" if finding.text else "none", finding.text or finding.reason)
        for op, finding in findings
    ]
    return (*declared, *users, *dict.fromkeys(sorted(found)))


def _said(op: str) -> str:
    """Return a declaration's text, or its docstring's first line if the text depends on the call."""
    declare = declaration(f"aten.{op}") or declaration(f"autopar.{op}")
    return ((declare.__doc__ if declare else "") or "").strip().splitlines()[0]
