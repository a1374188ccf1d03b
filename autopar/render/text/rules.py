"""Renders rules as text and tables: which dims may be split together, and the rules' sources."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from autopar.ir.units import seconds
from autopar.render.text.table import row, table
from autopar.rules.instance import Instance, Source
from autopar.rules.report import Coverage, Report
from autopar.rules.text import Term

SOURCES = {
    "declared": "declared by autopar",
    "user": "declared by the user",
    "discovered": "found by experiment",
    "none": "no rule: computed whole on every device",
}


def rules_table(rows: Iterable[tuple[str, str, str]]) -> Table:
    """Return a table of (operator, source, rule) rows."""
    made = table("rules", "operator", "source", "rule")
    made.columns[0].no_wrap, made.columns[2].no_wrap = True, False
    for cells in rows:
        row(made, *cells)
    return made


def rule_report(report: Report) -> str:
    """Return the text on one call: its rule, each factor in words, and the proof."""
    found = report.instance
    lines = [report.call, f"  {SOURCES[found.source]}"]
    if found.source != "none":
        lines.append(f"  rule    {found.rule}")
        lines += [f"  {factor:6}  {text}" for factor, text in factor_words(found)]
        for variant, (one, two) in found.pairs.items():
            lines.append(f"  {one} {two:4}  may be split on one axis together; by {variant}")
        for group in found.linear:
            named = " and ".join(map(str, sorted(group)))
            lines.append(f"  linear  a sum over devices passes through operand {named}")
        if found.least > 1:
            lines.append(f"  least   {found.least} entries of a split dim stay on a device")
    if report.reason:
        lines.append(f"  proof   none: {report.reason}")
    for claim in report.claims:
        said = (
            claim.error or claim.untried or f"equal, forward and backward, in {claim.trials} trials"
        )
        lines.append(f"  {'FAILS ' if claim.error else 'proof '}  {claim.what}: {said}")
    return "\n".join(lines)


def factor_words(found: Instance) -> tuple[tuple[str, str], ...]:
    """Return, for each factor that may be split, its dims and the effect on outputs without it."""
    return tuple((factor, _words(found, factor)) for factor in found.shardable)


def _words(found: Instance, factor: str) -> str:
    inputs, outputs = found.rule.inputs, found.rule.outputs
    held = [
        f"{_dim(term, factor)} of {name}"
        for terms, names in (
            (inputs, _names("operand", inputs)),
            (outputs, _names("output", outputs)),
        )
        for term, name in zip(terms, names, strict=True)
        if factor in term.factors
    ]
    text = f"{found.sizes[factor]} entries: splits {', '.join(held)}"
    lacking = [
        name
        for term, name in zip(outputs, _names("output", outputs), strict=True)
        if factor not in term.factors
    ]
    if factor in found.variants:
        text += f"; by {found.variants[factor]}"
    elif lacking:
        text += f"; {' and '.join(lacking)} becomes a sum over devices"
        added = [i for i, term in enumerate(inputs) if term.added]
        if added:
            text += f", operand {' and '.join(map(str, added))} a part of one"
    return text


def _names(word: str, terms: tuple[Term, ...]) -> list[str]:
    return [f"the {word}"] if len(terms) == 1 else [f"{word} {i}" for i in range(len(terms))]


def _dim(term: Term, factor: str) -> str:
    """Return ``dim 1``, or ``a part of dim 1`` if the dim has other factors."""
    dim = next(i for i, factors in enumerate(term.dims) if factor in factors)
    return f"dim {dim}" if len(term.dims[dim]) == 1 else f"a part of dim {dim}"


def coverage_line(found: Coverage, spent: float = 0.0) -> str:
    """Return ``rules: 40 declared, 3 discovered (mine.swiglu, 0.31 s), 1 none (aten.full)``."""
    said = []
    order: tuple[Source, ...] = ("declared", "user", "discovered", "none")
    for source in order:
        count = found.calls.get(source, 0)
        if not count:
            continue
        ops = [op.removesuffix(".default") for op in found.operators[source]]
        notes = [] if source == "declared" else ops[:4] + (["..."] if len(ops) > 4 else [])
        if source == "discovered" and spent:
            notes.append(seconds(spent))
        said.append(f"{count} {source}" + (f" ({', '.join(notes)})" if notes else ""))
    return f"rules: {', '.join(said)}"
