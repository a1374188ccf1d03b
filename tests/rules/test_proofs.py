"""Every rule is proved by running it: on examples of every operator, and on the models' own nodes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
import torch
from torch.torch_version import TorchVersion

from autopar import rules
from autopar.capture import capture
from autopar.ir.graph import Graph, Node, short
from autopar.ir.mesh import Mesh
from autopar.ir.placement import S
from autopar.plans.decisions import OpSharding
from autopar.rules.declare import rule_of
from tests import models
from tests.rules.building import Example, build
from tests.rules.examples import EXAMPLES, FAMILIES
from tests.rules.prove import check, prove, reference

MESHES = (Mesh.of(2), Mesh.of(3))
TOO_SMALL = "as small as the mesh"
"""Examples with this note are about factors that must not be split."""


def _ids(example: Example) -> str:
    return example.name


@pytest.mark.parametrize("example", EXAMPLES, ids=_ids)
def test_rule(example: Example) -> None:
    """All candidates on two and on three ranks, and every factor is split by some of them."""
    if "aminmax" in example.op and torch.__version__ < TorchVersion("2.13"):
        pytest.skip("torch before 2.13 has no derivative of aminmax")
    graph, node = build(example)
    whole = reference(graph, node)
    split: set[str] = set()
    for mesh in MESHES:
        split |= split_factors(graph, node, prove(graph, node, mesh, whole=whole))
    repeated = len(set(node.operands)) < len(node.operands)
    squeezed = "squeeze" in node.op and example.note == TOO_SMALL
    assert repeated or squeezed or split == set(rule_of(node, graph).shardable)


def test_no_proof_is_about_zeros() -> None:
    """Any split and any sum of zeros is right: an example has to make something else."""
    allowed = {"zeros", "all"}
    wholes = {example.name: reference(*build(example)) for example in EXAMPLES}
    empty = {name for name, w in wholes.items() if not any(made.any() for made in w.outputs)}
    assert empty <= allowed, f"these examples make zeros only: {empty - allowed}"


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=_ids)
@pytest.mark.parametrize("sizes", [(2, 2), (2, 3), (3, 2)], ids=str)
def test_two_axes(example: Example, sizes: tuple[int, int]) -> None:
    """Options of two axes together, nested splits of one factor among them."""
    graph, node = build(example)
    prove(graph, node, Mesh.of(*sizes), seed=1)


def test_nested_splits() -> None:
    """Two axes on one factor, and a factor beside a partial value, in everyday operators."""
    wanted = {"linear.default", "layer_norm.default", "cross_entropy_sum", "embedding.default"}
    for example in EXAMPLES:
        if example.name in wanted or short(example.op) in wanted:
            graph, node = build(example)
            prove(graph, node, Mesh.of(2, 3))


def test_every_rule_is_proved() -> None:
    """No operator is registered without an example."""
    shown = {word for example in EXAMPLES for word in _entries(example)}
    missing = [op for op in rules.registered() if op not in shown]
    assert not missing, f"no example of {', '.join(missing)}"


def test_examples_reach_their_rule() -> None:
    """Every operator that has examples and a rule is declared in at least one of them."""
    declared: dict[str, bool] = {}
    for name, examples in FAMILIES.items():
        for example in examples if name != "unruled" else ():
            graph, node = build(example)
            found = rule_of(node, graph).declared
            declared[node.op] = declared.get(node.op, False) or found
    whole = {op for op, found in declared.items() if not found}
    shapes_of_another = {
        "aten.view_as.default",
        "aten.reshape_as.default",
        "aten.expand_as.default",
    }
    assert whole == shapes_of_another | {
        "aten.batch_norm.default", "aten.view.dtype",
    }  # fmt: skip


@pytest.mark.parametrize("case", models.CASES)
def test_operators_of_models(case: str) -> None:
    """Every distinct operator call of the models, with the positions that the whole graph gives."""
    graph = _captured(case)
    options = rules.candidates(graph, MESHES[0], local_inputs=True)
    for node in _distinct(graph):
        whole = reference(graph, node)
        for sharding in options[node.name]:
            check(whole, sharding, MESHES[0])


@cache
def _captured(case: str) -> Graph:
    model, inputs, loss = models.double(models.CASES[case]())
    return capture(model, inputs, loss=loss)


def _distinct(graph: Graph) -> Iterator[Node]:
    """One node per operator, arguments and shapes."""
    seen: set[object] = set()
    for node in graph.nodes:
        if node.is_leaf:
            continue
        key = (node.op, id(rule_of(node, graph)))
        if key not in seen:
            seen.add(key)
            yield node


def split_factors(graph: Graph, node: Node, options: tuple[OpSharding, ...]) -> set[str]:
    """Which factors these options split."""
    instance = rule_of(node, graph)
    terms = (*instance.rule.inputs, *instance.rule.outputs)
    return {
        at[0]
        for option in options
        for term, form in zip(terms, (*option.inputs, *option.outputs), strict=True)
        for kind in form
        if isinstance(kind, S) and (at := instance.factor_at(term, kind)) is not None
        if at[0] not in instance.rule.whole  # which is split only together with another
    }


def _entries(example: Example) -> tuple[str, str]:
    """The names under which a rule for this operator may be registered."""
    return example.op.split(".", 1)[1], short(example.op)
