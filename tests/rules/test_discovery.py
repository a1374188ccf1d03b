"""Rules found by experiment: what is found, what is refused, and that it is found once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch

import autopar
from autopar.errors import InputError
from autopar.ir.graph import Graph, Node, Ref, Tensor
from autopar.rules import discovered, rule_of
from autopar.rules.declare import Declared, forget, instance
from autopar.rules.discover import find, store
from autopar.rules.discover.find import discovery, forget_all
from autopar.rules.discover.settle import Finding
from autopar.rules.discover.sizes import small_shapes
from autopar.rules.instance import Instance
from tests.custom import operators as operators
from tests.custom.model import gated
from tests.rules.building import Example, build, ids, mask, n, t
from tests.rules.examples import EXAMPLES


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a new process with an empty cache."""
    monkeypatch.setenv("AUTOPAR_CACHE", str(tmp_path))
    forget_all()
    forget()
    yield
    forget_all()
    forget()


def call(op: str, *args: object) -> tuple[Graph, Node]:
    return build(Example(f"{op}.default" if op.count(".") < 2 else op, args))


def found(op: str, *args: object) -> Finding:
    graph, node = call(op, *args)
    return discovery(node, tuple(graph.tensors[name] for name in node.operands)).finding


def lettered(rule: Instance) -> tuple[object, ...]:
    """The dims that each factor splits, whatever it is called."""
    terms = (*rule.rule.inputs, *rule.rule.outputs)
    places = {
        tuple(
            (i, str(rule.shard(term, f, 1)))
            for i, term in enumerate(terms)
            if rule.shard(term, f, 1)
        )
        for f in rule.shardable
    }
    summed = rule.rule.summed & set(rule.shardable)
    added = tuple(term.added for term in rule.rule.inputs if summed)
    return places, added, set(rule.linear)


REDISCOVERED = [
    "linear", "linear:no bias", "addmm", "addmm:row", "mm", "bmm", "matmul:vector left", "conv1d",
    "layer_norm", "softmax.int", "sum.dim_IntList", "add.Tensor", "mul.Tensor", "cat", "gelu",
    "transpose.int", "scaled_dot_product_attention:grouped mask",
]  # fmt: skip


@pytest.mark.parametrize("name", REDISCOVERED)
def test_declared_rules_are_found_again(name: str) -> None:
    """An experiment knows nothing of what is declared, and comes to the same or to more."""
    (example,) = [example for example in EXAMPLES if example.name == name]
    graph, node = build(example)
    operands = tuple(graph.tensors[operand] for operand in node.operands)
    declared = discovery(node, operands).finding.on(node, operands)
    assert declared is not None
    ours, theirs = lettered(rule_of(node, graph)), lettered(instance(declared, node, operands))
    assert ours[0] <= theirs[0] and ours[2] <= theirs[2]
    assert not ours[0] or ours[1] == theirs[1]


def test_parts_of_a_dim() -> None:
    """A fused gate and value are two blocks, each of which is split."""
    rule = found("autopar_tests.swiglu", t(4, 6, 64))
    assert rule.text == "a b (w0! c) -> a b c" and dict(rule.sizes) == {"w0": 2}


def test_an_operator_named_like_one_of_atens() -> None:
    """``autopar_tests::add`` doubles its first operand: ATen's rule would pass partial values alone."""
    graph, node = call("autopar_tests.add", t(4, 6, 64), t(64))
    rule = rule_of(node, graph)
    assert rule.source == "discovered"
    assert rule.linear == (frozenset({0, 1}),) and len(rule.shardable) == 3


def test_sums_over_what_is_split() -> None:
    rule = found("autopar_tests.project", t(4, 6, 64), t(64, 32))
    assert rule.linear == ((0,), (1,))
    assert rule.text == "a b c, c d -> a b d"


def test_rows_that_are_looked_up_and_added() -> None:
    """An index is drawn inside the dim; the look-up itself stays whole, its rows do not."""
    assert (
        found("aten.scatter_add", t(12, 6), 0, ids(18, 6), t(18, 6)).text
        == "+ w0! a, b a, b a -> w1! a"
    )
    gathered = found("aten.gather", t(6, 9), 1, ids(6, 12))
    assert gathered.text == "a w0!, a b -> a b"


def test_a_wrong_backward_is_seen() -> None:
    """Forward each row is for itself; the gradient looks at all rows."""
    rule = found("autopar_tests.centred", t(8, 32))
    assert "a" in rule.text and rule.text.startswith("w0! ")


def test_what_reaches_over_borders_stays_whole() -> None:
    """Windows of four divide a half of the dim, but not a half of every block: their number splits."""
    rule = found("autopar_tests.windows", n(24, 5), 4)
    assert rule.text == "(a w0!) b -> (a w1!) b" and dict(rule.sizes) == {"w0": 4, "w1": 4}


def test_a_dim_as_long_as_a_number_stays_so() -> None:
    """A roll by as much as the small dim is long would look like nothing at all."""
    assert small_shapes(((26,),), {12}, {12}, False) == ((18,),)
    assert small_shapes(((36,),), {12}, {12}, False) == ((24,),)
    assert small_shapes(((24, 6),), {12}, {12}, False)[0][0] % 12 == 0
    assert small_shapes(((24, 6),), {12}, {12}, False)[0][0] > 12
    assert small_shapes(((12, 6),), {12}, {12}, False)[0][0] == 12
    assert found("aten.roll", t(24, 6), [12], [0]).text == "w0! a -> w1! a"


DECLINED = {
    "noisy": ("draws random numbers", (n(4, 8),)),
    "bump": ("changes its argument x", (n(4, 8), n(4, 8))),
}


@pytest.mark.parametrize("op", DECLINED)
def test_what_no_experiment_can_speak_of(op: str) -> None:
    reason, args = DECLINED[op]
    rule = found(f"autopar_tests.{op}", *args)
    assert not rule.text and reason in rule.reason


LOOKS_FOR_LABELS = ("cosine_embedding_loss", "hinge_embedding_loss", "margin_ranking_loss")


@pytest.mark.parametrize("op", LOOKS_FOR_LABELS)
@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_targets_are_tried_that_an_operator_looks_for(op: str, reduction: int) -> None:
    """Of targets that are neither 1 nor -1 a cosine loss is zero, as zeros of its parts would add up."""
    if op == "cosine_embedding_loss":
        rule = found(f"aten.{op}", t(12, 6), t(12, 6), n(12), 0.5, reduction)
    elif op == "hinge_embedding_loss":
        rule = found(f"aten.{op}", t(12), n(12), 0.5, reduction)
    else:
        rule = found(f"aten.{op}", t(12), t(12), n(12), 0.5, reduction)
    assert bool(rule.text) == (reduction != 1)


def test_nothing_is_told_from_zeros() -> None:
    rule = found("autopar_tests.marked", t(12, 6))
    assert not rule.text and "all zero" in rule.reason


def test_an_operator_for_one_dtype() -> None:
    leaf, made = (Tensor(name, (4, 8), "float16", False) for name in ("x", "made"))
    node = Node("made", "autopar_tests.half_only.default", (Ref("x"),), outputs=(made,))
    graph = Graph("half", (Node("x", "input", outputs=(leaf,), target="x"), node), None)
    rule = discovery(node, (leaf,)).finding
    assert "does not run in float64" in rule.reason and "wants float16" in rule.reason
    assert rule_of(node, graph).source == "none"


def test_experiments_leave_no_trace_in_random_numbers() -> None:
    graph, node = call("autopar_tests.noisy", n(4, 8))
    torch.manual_seed(3)
    want = torch.rand(3)
    torch.manual_seed(3)
    assert rule_of(node, graph).source == "none"
    found("autopar_tests.swiglu", t(4, 6, 64))
    assert torch.equal(torch.rand(3), want)


def test_under_a_default_device() -> None:
    """Plans may be made where everything new lies on the meta device."""
    with torch.device("meta"):
        assert found("autopar_tests.swiglu", t(4, 6, 64)).text


# ---- once


@pytest.mark.thorough
def test_the_second_plan_makes_no_experiment() -> None:
    model, inputs, loss = gated()
    autopar.plan(model, (2,), inputs, loss=loss, hardware="cpu")
    first = discovered()
    assert {d.op for d in first} >= {"autopar_tests.swiglu.default"}
    assert all(d.origin == "experiment" and d.seconds > 0 for d in first)
    with mock.patch.object(find, "experiment", side_effect=AssertionError):
        forget()
        autopar.plan(model, (2,), inputs, loss=loss, hardware="cpu")
        forget_all()
        forget()
        autopar.plan(model, (2,), inputs, loss=loss, hardware="cpu")
    assert [(d.op, d.finding) for d in discovered()] == [(d.op, d.finding) for d in first]
    assert all(d.origin == "disk" for d in discovered())


def test_a_corrupt_file_is_written_anew() -> None:
    want = found("autopar_tests.swiglu", t(4, 6, 64))
    (path,) = store.folder().glob("*.json")
    good = path.read_text()
    wrong = json.loads(good)
    wrong["finding"]["linear"] = "nothing"
    foreign = json.loads(good)
    foreign["key"]["torch"] = "1.0"
    for text in ("{", "[]", "{}", json.dumps(wrong), json.dumps(foreign)):
        path.write_text(text)
        forget_all()
        assert found("autopar_tests.swiglu", t(4, 6, 64)) == want
        assert path.read_text() == good
    assert discovered()[0].origin == "experiment"


def test_another_source_or_torch_is_another_key() -> None:
    found("autopar_tests.swiglu", t(4, 6, 64))
    for target in ("autopar.rules._torch.source_digest", "autopar.rules._torch.schema"):
        forget_all()
        with mock.patch(target, return_value="changed"):
            found("autopar_tests.swiglu", t(4, 6, 64))
        assert discovered()[0].origin == "experiment"
    forget_all()
    with mock.patch("autopar.rules._torch.source_digest", return_value=None):
        found("autopar_tests.swiglu", t(4, 6, 64))
    assert len(list(store.folder().glob("*.json"))) == 3


def test_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, node = call("autopar_tests.swiglu", t(4, 6, 64))
    monkeypatch.setenv(store.SWITCH, "off")
    assert rule_of(node, graph).source == "none" and not discovered()
    monkeypatch.setenv(store.SWITCH, "fresh")
    forget()
    assert rule_of(node, graph).source == "discovered"
    assert not store.folder().exists()
    monkeypatch.setenv(store.SWITCH, "perhaps")
    forget()
    with pytest.raises(InputError, match="on, off, fresh"):
        rule_of(node, graph)


def test_a_rule_that_does_not_fit_other_shapes() -> None:
    """Whole factors whose sizes no shape tells are those of the experiment."""
    rule = Finding("(w0! a) -> (w1! a)", sizes=(("w0", 2), ("w1", 2)))
    graph, node = call("aten.sin", t(9))
    assert rule.on(node, tuple(graph.tensors[name] for name in node.operands)) is None
    assert isinstance(rule.on(*_sin(8)), Declared)


def _sin(size: int) -> tuple[Node, tuple[object, ...]]:
    graph, node = call("aten.sin", t(size))
    return node, tuple(graph.tensors[name] for name in node.operands)


def test_a_kernel_that_checks_nothing_is_not_run() -> None:
    """An LSTM's kernel crashes on weights of other sizes; shapes alone say so first."""
    args = (t(4, 6, 8), [n(1, 6, 12), n(1, 6, 12)], [t(48, 8), t(48, 12), t(48), t(48)])
    rule = found("aten.lstm.input", *args, True, 1, 0.0, True, False, False)
    assert rule.ran and rule.trials >= 0


def test_indices_are_no_mask() -> None:
    """ATen says of every index that its result depends on values; whole numbers do not."""
    assert found("aten.index.Tensor", t(6, 9), [ids(12)]).text == "w0! a, b -> b a"
    masked = found("aten.index.Tensor", n(6, 9), [mask(6)])
    assert "depends on values" in masked.reason
