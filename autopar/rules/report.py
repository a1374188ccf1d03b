"""Reports on an operator call: its rule, the rule's source, and a new proof."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autopar.errors import RuleError
from autopar.ir.graph import Graph, Node, Tensor
from autopar.rules.declare import rule_of
from autopar.rules.discover.find import benches, discovery
from autopar.rules.discover.laboratory import Bench, Declined, refuse, sheltered
from autopar.rules.discover.sizes import affordable, families
from autopar.rules.discover.trial import Refuted, Trial, conduct, partials, splits
from autopar.rules.instance import Instance, Source


@dataclass(frozen=True)
class Claim:
    """One statement of a rule and the result of its trials.

    `error` is empty if every trial agreed; `untried` is the reason if there was none.
    """

    what: str
    trials: int = 0
    error: str = ""
    untried: str = ""


@dataclass(frozen=True)
class Report:
    """A call's rule with its proof."""

    op: str
    call: str
    instance: Instance
    claims: tuple[Claim, ...]
    seconds: float
    reason: str = ""
    """Reason why there is no rule or no proof."""

    @property
    def holds(self) -> bool:
        """Return whether no trial refuted the rule."""
        return not any(claim.error for claim in self.claims)


@dataclass(frozen=True)
class Coverage:
    """Sources of a graph's rules: the number of calls and the operators, by source."""

    calls: Mapping[Source, int]
    operators: Mapping[Source, tuple[str, ...]]


def coverage(graph: Graph) -> Coverage:
    """Count a graph's calls by the source of their rules."""
    sources = [(rule_of(node, graph).source, node.op) for node in graph.nodes if not node.is_leaf]
    operators: dict[Source, dict[str, None]] = {}
    for source, op in sources:
        operators.setdefault(source, {})[op] = None
    return Coverage(
        Counter(source for source, _ in sources),
        {source: tuple(ops) for source, ops in operators.items()},
    )


def report(graph: Graph, node: Node) -> Report:
    """Prove the rule of a call on small tensors with the call's structure."""
    started = time.perf_counter()
    operands = tuple(graph.tensors[name] for name in node.operands)
    found = rule_of(node, graph)
    call = _spoken(node, operands)
    if found.source == "none":
        reason = discovery(node, operands).finding.reason if operands else "it reads no tensor"
        return Report(node.op, call, found, (), time.perf_counter() - started, reason)
    try:
        claims, reason = _claims(node, graph, operands), ""
    except (Declined, RuleError) as why:
        claims, reason = (), str(why)
    return Report(node.op, call, found, claims, time.perf_counter() - started, reason)


def _claims(node: Node, graph: Graph, operands: tuple[Tensor, ...]) -> tuple[Claim, ...]:
    shapes = tuple(tensor.shape for tensor in operands)
    refuse(node, operands)
    tried = (*families(shapes, node), *(((shapes,),) if affordable(shapes) else ()))
    with sheltered():
        return tuple(_tried(rule_of(node, graph), benches(node, operands, tried)))


def _tried(found: Instance, held: tuple[Bench, ...]) -> Iterator[Claim]:
    for factor in found.shardable:
        what = f"splitting {factor}"
        if factor in found.variants:
            yield Claim(
                what,
                untried=f"needs {found.variants[factor]}, which communicates with other devices",
            )
            continue
        yield _outcome(what, [(splits(factor, _on(bench), bench), bench) for bench in held])
    for variant, pair in found.pairs.items():
        said = f"needs {variant}, which communicates with other devices"
        yield Claim(f"splitting {' and '.join(pair)}", untried=said)
    for group in found.linear:
        what = f"partial operand {', '.join(map(str, sorted(group)))}"
        yield _outcome(what, [(partials(group, _on(bench), bench), bench) for bench in held])


def _on(bench: Bench) -> Instance:
    return rule_of(bench.node, bench.graph)


def _outcome(what: str, trials: list[tuple[Iterator[Trial], Bench]]) -> Claim:
    try:
        done = sum(conduct(each, bench) for each, bench in trials)
    except Refuted as refuted:
        return Claim(what, error=str(refuted))
    return Claim(what, done, untried="" if done else "its size here has no parts")


def _spoken(node: Node, operands: tuple[Tensor, ...]) -> str:
    """Return ``aten.linear.default(x0, x1)`` followed by the tensors' dtypes and shapes."""
    arguments = [*map(repr, node.args), *(f"{key}={value!r}" for key, value in node.kwargs)]
    shapes = ", ".join(f"{t.name}: {t.dtype}{list(t.shape)}" for t in dict.fromkeys(operands))
    return f"{node.op}({', '.join(arguments)})" + (f"  {shapes}" if shapes else "")
