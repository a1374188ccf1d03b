"""Wrong rules, made from right ones by one small change each, and what the proof says of them.

A mutant is *rejected* where it no longer fits the shapes, *equal* where it offers the same
candidates, *weaker* where it offers fewer: a proof shows that what is offered is right, not that all
that is right is offered.  Every other mutant offers something new, which the proof must refuse; a
test may call one *sound* that it misses, with its reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

from autopar.errors import RuleError
from autopar.ir.graph import Graph, Node
from autopar.ir.mesh import Mesh
from autopar.plans.decisions import OpSharding
from autopar.rules.declare import rule_of
from autopar.rules.instance import Instance, bind
from autopar.rules.text import Rule, Term
from tests.rules.building import Example, build
from tests.rules.prove import Reference, candidates, check, reference, with_rule

Verdict = Literal["rejected", "equal", "weaker", "caught", "missed", "sound"]
MESHES = (Mesh.of(2), Mesh.of(3))


@dataclass(frozen=True)
class Mutant:
    """A changed rule; `what` names the change."""

    what: str
    instance: Instance

    def __str__(self) -> str:
        linear = " ".join(str(sorted(group)) for group in self.instance.linear)
        return f"{self.what}: {self.instance.rule}  linear {linear or '-'}"


@dataclass(frozen=True)
class Judged:
    """One mutant of one example, and its verdict."""

    example: str
    mutant: Mutant
    verdict: Verdict

    def __str__(self) -> str:
        return f"{self.verdict}  {self.example}  {self.mutant}"


def mutants(instance: Instance) -> Iterator[Mutant]:
    """Every small change of a rule."""
    yield from _markers(instance)
    for side, terms in (("inputs", instance.rule.inputs), ("outputs", instance.rule.outputs)):
        for place, term in enumerate(terms):
            for what, changed in _changed(term, instance.rule):
                new = (*terms[:place], changed, *terms[place + 1 :])
                yield _with(instance, what, **{side: new})
        for a, b in combinations(range(len(terms)), 2):
            if terms[a].dims != terms[b].dims:
                swapped = list(terms)
                swapped[a] = replace(terms[a], dims=terms[b].dims)
                swapped[b] = replace(terms[b], dims=terms[a].dims)
                yield _with(instance, f"{side} swapped", **{side: tuple(swapped)})
    yield from _claims(instance)


def judge(example: Example) -> list[Judged]:
    """Every mutant of an example's rule; none where the call has no rule."""
    graph, node = build(example)
    if not rule_of(node, graph).declared:
        return []
    whole = reference(graph, node)
    offered = [set(candidates(graph, node, mesh)) for mesh in MESHES]
    return [
        Judged(example.name, mutant, _verdict(mutant, whole, offered))
        for mutant in mutants(rule_of(node, graph))
    ]


def report(judged: list[Judged]) -> tuple[float, str]:
    """The share of wrong mutants that the proof caught, and a table by kind of change."""
    counts: dict[str, Counter[str]] = {}
    for item in judged:
        counts.setdefault(item.mutant.what, Counter())[item.verdict] += 1
    columns = ("caught", "missed", "sound", "rejected", "equal", "weaker")
    lines = ["".join(f"{word:>10}" for word in columns)]
    for what, found in sorted(counts.items()):
        lines.append("".join(f"{found[word]:>10}" for word in columns) + f"  {what}")
    total = sum(counts.values(), Counter())
    lines.append("".join(f"{total[word]:>10}" for word in columns) + "  in all")
    wrong = total["caught"] + total["missed"]
    share = total["caught"] / wrong if wrong else 1.0
    lines.append(f"{share:.4f} of {wrong} wrong mutants caught")
    return share, "\n".join(lines)


def _verdict(mutant: Mutant, whole: Reference, offered: list[set[OpSharding]]) -> Verdict:
    fitted = _fitted(mutant.instance, whole.graph, whole.node)
    if fitted is None:
        return "rejected"
    equal = True
    new: list[tuple[OpSharding, Mesh]] = []
    for mesh, right in zip(MESHES, offered, strict=True):
        with with_rule(fitted):
            made = candidates(whole.graph, whole.node, mesh)
        equal = equal and set(made) == right
        new += [(option, mesh) for option in made if option not in right]
    if not new:
        return "equal" if equal else "weaker"
    return "caught" if any(_fails(whole, option, mesh) for option, mesh in new) else "missed"


def _fails(whole: Reference, option: OpSharding, mesh: Mesh) -> bool:
    try:
        check(whole, option, mesh)
    except Exception:
        return True
    return False


def _fitted(instance: Instance, graph: Graph, node: Node) -> Instance | None:
    """The instance with the sizes that its own text gives; None where it does not fit."""
    rule = instance.rule
    dims = [dim for term in (*rule.inputs, *rule.outputs) for dim in term.dims]
    merged = {factor for dim in dims if len(dim) > 1 for factor in dim}
    given = {f: size for f, size in instance.sizes.items() if f in merged}
    try:
        sizes = bind(rule, node, tuple(graph.tensors[name] for name in node.operands), given)
    except RuleError:
        return None
    return replace(instance, sizes=sizes)


def _markers(instance: Instance) -> Iterator[Mutant]:
    """``!`` and ``+`` left out, a variant forgotten."""
    rule = instance.rule
    for factor in sorted(rule.whole):
        if instance.sizes[factor] > 1:
            yield _with(instance, "! dropped", whole=rule.whole - {factor})
    for place, term in enumerate(rule.inputs):
        if term.added:
            bare = (*rule.inputs[:place], replace(term, added=False), *rule.inputs[place + 1 :])
            yield _with(instance, "+ dropped", inputs=bare)
    for factor in instance.variants:
        rest = {f: name for f, name in instance.variants.items() if f != factor}
        yield Mutant("variant forgotten", replace(instance, variants=rest))


def _changed(term: Term, rule: Rule) -> Iterator[tuple[str, Term]]:
    """Two dims swapped, two merged factors swapped, one factor no longer the one of other terms."""
    dims = term.dims
    for a, b in combinations(range(len(dims)), 2):
        swapped = list(dims)
        swapped[a], swapped[b] = dims[b], dims[a]
        yield "dims swapped", replace(term, dims=tuple(swapped))
    others = [other for other in (*rule.inputs, *rule.outputs) if other is not term]
    for place, dim in enumerate(dims):
        for a, b in combinations(range(len(dim)), 2):
            mixed = list(dim)
            mixed[a], mixed[b] = dim[b], dim[a]
            new = (*dims[:place], tuple(mixed), *dims[place + 1 :])
            yield "merged factors swapped", replace(term, dims=new)
        for factor in dim:
            if factor not in rule.whole and any(factor in other.factors for other in others):
                fresh = tuple("fresh" if f == factor else f for f in dim)
                new = (*dims[:place], fresh, *dims[place + 1 :])
                yield "factor unlinked", replace(term, dims=new)


def _claims(instance: Instance) -> Iterator[Mutant]:
    """Linear where it is not: in one operand alone, in several together, in part of a sum."""
    known = instance.linear
    for place in range(len(instance.rule.inputs)):
        alone = frozenset({place})
        if alone not in known:
            yield Mutant("linear claimed", replace(instance, linear=(*known, alone)))
    for group in known:
        for place in sorted(group) if len(group) > 1 else ():
            rest = tuple(g - {place} if g == group else g for g in known)
            yield Mutant("linear narrowed", replace(instance, linear=rest))
    for one, two in combinations(known, 2):
        rest = tuple(g for g in known if g not in (one, two))
        yield Mutant("linear joined", replace(instance, linear=(*rest, one | two)))


def _with(
    instance: Instance,
    what: str,
    *,
    inputs: tuple[Term, ...] | None = None,
    outputs: tuple[Term, ...] | None = None,
    whole: frozenset[str] | None = None,
) -> Mutant:
    rule = instance.rule
    changed = Rule(
        rule.inputs if inputs is None else inputs,
        rule.outputs if outputs is None else outputs,
        rule.whole if whole is None else whole,
    )
    return Mutant(what, replace(instance, rule=changed))
