"""The command ``autopar rules [OP]``: lists rules, or explains and proves those of an operator."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from autopar.api import captured_graph
from autopar.cli.flags import AS_JSON, BATCH, MODEL_HELP, SEQUENCE
from autopar.cli.models import load
from autopar.cli.output import console, watched, working
from autopar.errors import InputError
from autopar.ir.graph import Graph, Node, bare
from autopar.render.text import rule_report, rules_table
from autopar.render.text.rules import factor_words
from autopar.rules import known_rules, rule_of
from autopar.rules.example import example, overload_of
from autopar.rules.report import Report, report
from autopar.utils.suggest import near

MOST = 4
"""Maximum number of calls of one operator that are shown."""


def command(
    operator: Annotated[
        str | None, typer.Argument(metavar="[OP]", help="Operator, such as linear or mine::swiglu.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help=f"The operators that this model calls: {MODEL_HELP}.")
    ] = None,
    shapes: Annotated[
        str | None,
        typer.Option(help="Shapes of OP's tensors, such as 6x12,18x12; default: some that fit."),
    ] = None,
    as_json: AS_JSON = False,
    batch: BATCH = None,
    sequence: SEQUENCE = None,
) -> None:
    """List the sharding rules of operators; with OP, explain one rule and prove it again."""
    if operator is None and shapes is not None:
        raise InputError("--shapes applies to one operator: name it, as in `autopar rules linear`.")
    graph = _graph(model, batch, sequence) if model else None
    if operator is None:
        with working("looking for rules"):
            rows = tuple(_of_graph(graph)) if graph else known_rules()
        _listed(rows, as_json)
        return
    calls = _calls(operator, graph, _shapes(shapes))
    reports = list(watched((report(*call) for call in calls), len(calls), "proving"))
    if as_json:
        typer.echo(json.dumps([_content(each) for each in reports], indent=1))
    else:
        console().print("\n\n".join(map(rule_report, reports)), markup=False, soft_wrap=True)
    if not all(each.holds for each in reports):
        raise typer.Exit(1)


def _graph(model: str, batch: int | None, sequence: int | None) -> Graph:
    loaded = load(model, batch, sequence)
    with working("capturing the model"):
        return captured_graph(loaded.model, loaded.inputs, loss=loaded.loss)


def _listed(rows: Iterable[tuple[str, str, str]], as_json: bool) -> None:
    if as_json:
        keys = ("operator", "source", "rule")
        typer.echo(json.dumps([dict(zip(keys, each, strict=True)) for each in rows], indent=1))
    else:
        console().print(rules_table(rows))


def _of_graph(graph: Graph) -> Iterable[tuple[str, str, str]]:
    """Return each distinct pair of operator and rule in a model, once, with the rule's source."""
    found: dict[tuple[str, str, str], None] = {}
    for node in graph.nodes:
        if not node.is_leaf:
            rule = rule_of(node, graph)
            text = "" if rule.source == "none" else str(rule.rule)
            found[node.op, rule.source, text] = None
    return sorted(found)


def _calls(
    operator: str, graph: Graph | None, shapes: tuple[tuple[int, ...], ...] | None
) -> list[tuple[Graph, Node]]:
    """Return the calls of an operator to show: those of the model, or a constructed example."""
    if graph is None:
        return [example(overload_of(operator), shapes)]
    wanted = operator.replace("::", ".").removeprefix("aten.")
    named = {node.op.removeprefix("aten."): node for node in graph.nodes if not node.is_leaf}
    distinct: dict[int, Node] = {}
    for node in graph.nodes:
        name = node.op.removeprefix("aten.")
        words = (name, name.rpartition(".")[0], bare(node.op))
        if not node.is_leaf and wanted in words:
            distinct.setdefault(id(rule_of(node, graph)), node)
    if not distinct:
        raise InputError(f"The model calls no operator {operator!r}.{near(wanted, named)}")
    return [(graph, node) for node in list(distinct.values())[:MOST]]


def _shapes(text: str | None) -> tuple[tuple[int, ...], ...] | None:
    if text is None:
        return None
    try:
        return tuple(
            tuple(int(size) for size in shape.split("x") if size) for shape in text.split(",")
        )
    except ValueError:
        raise InputError(f"Cannot read the shapes {text!r}: write 6x12,18x12.") from None


def _content(found: Report) -> dict[str, Any]:
    rule = found.instance
    return {
        "operator": found.op,
        "call": found.call,
        "source": rule.source,
        "rule": "" if rule.source == "none" else str(rule.rule),
        "factors": dict(factor_words(rule)),
        "linear": [sorted(group) for group in rule.linear],
        "least": rule.least,
        "holds": found.holds,
        "reason": found.reason,
        "claims": [
            {"what": c.what, "trials": c.trials, "error": c.error, "untried": c.untried}
            for c in found.claims
        ],
        "seconds": round(found.seconds, 3),
    }
