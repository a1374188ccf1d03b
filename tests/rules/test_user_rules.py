"""Rules that a user declares: proved before they are used, or refused with what shows them wrong."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import autopar
from autopar.errors import RuleError
from autopar.rules import rule_of, user, user_rules
from autopar.rules.declare import forget
from tests.custom import operators as operators
from tests.custom.model import gated
from tests.rules.building import Example, build, n, t

PROJECT = "autopar_tests::project"
BOTH = [{0}, {1}]


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """No rule outlives its test."""
    yield
    user._RULES.clear()
    forget()


def project() -> tuple[object, object]:
    return build(Example("autopar_tests.project.default", (t(4, 6, 64), t(64, 32))))


def test_a_right_rule_is_used() -> None:
    graph, node = project()
    assert rule_of(node, graph).source == "discovered"
    autopar.rule(PROJECT, "b* i, i o -> b* o", linear=BOTH)
    found = rule_of(node, graph)
    assert found.source == "user" and str(found.rule) == "b0 b1 i, i o -> b0 b1 o"
    (declared,) = user_rules()
    assert declared.op == PROJECT and sum(declared.proved.values()) > 50


def test_a_plan_uses_it() -> None:
    autopar.rule("autopar_tests::swiglu", "b* (p! h) -> b* h", sizes={"p": 2})
    autopar.rule("autopar_tests::project", "b* i, i o! -> b* o!", linear=BOTH)
    model, inputs, loss = gated()
    made = autopar.compile_model(model, (2,), inputs, loss=loss, hardware="cpu", preset="megatron")
    (product, *_) = (node for node in made.graph.nodes if "project" in node.op)
    assert "S(1" not in str(made.plan.choice[product.name].inputs[1])


@pytest.mark.parametrize(
    ("op", "text", "linear", "words"),
    [
        (PROJECT, "b t i, i o -> b t o", [{0, 1}], r"operand 0, 1 partial on 2 ranks, \[P\], \[P\]"),
        ("autopar_tests::add", "b t h, h -> b t h", [{0}], r"operand 0 partial.*error"),
        ("autopar_tests::add", "b t h, j! -> b t h", (), r"splitting h over 2 ranks, \[S\(2\)\], \[R\]"),
        ("autopar_tests::centred", "b t h -> b t h", (), r"splitting b over 2 ranks.*gradient of"),
        ("autopar_tests::swiglu", "b t (h p!) -> b t h", (), r"splitting h over 2 ranks.*output 0"),
    ],
)  # fmt: skip
def test_a_wrong_rule_is_refused(op: str, text: str, linear: object, words: str) -> None:
    """At first use, with the split and what came of it."""
    name = op.replace("::", ".")
    args = {"project": (t(4, 6, 64), t(64, 32)), "add": (t(4, 6, 64), t(64))}
    graph, node = build(Example(f"{name}.default", args.get(name.split(".")[1], (t(4, 6, 64),))))
    autopar.rule(op, text, linear=linear)
    with pytest.raises(RuleError, match=words) as refused:
        rule_of(node, graph)
    assert str(refused.value).startswith(f"autopar.rule({op!r}, {text!r}) is wrong: ")
    with pytest.raises(RuleError):
        rule_of(node, graph)


def test_shapes_are_proved_at_once() -> None:
    shapes = [(4, 6, 12), (12, 18)]
    with pytest.raises(RuleError, match=r"is wrong: splitting [oi].* over 2 ranks"):
        autopar.rule(PROJECT, "b t i, o i -> b t o", shapes=[(4, 6, 12), (12, 12)])
    assert not user_rules()
    autopar.rule(PROJECT, "b* i, i o -> b* o", linear=BOTH, shapes=shapes)
    assert user_rules()


def test_what_cannot_be_proved_is_refused() -> None:
    graph, node = build(Example("autopar_tests.noisy.default", (n(4, 8),)))
    autopar.rule("autopar_tests::noisy", "b h -> b h")
    with pytest.raises(RuleError, match="cannot be proved: it draws random numbers"):
        rule_of(node, graph)


@pytest.mark.parametrize(
    ("op", "text", "words"),
    [
        ("project", "i -> i", "write 'namespace::name'"),
        ("autopar_tests::nothing", "i -> i", "import the module that registers it"),
        ("aten::linear", "b i, o i -> b o", "rule of autopar's own"),
        (PROJECT, "b i, i o", "needs exactly one '->'"),
        (PROJECT, "B i, i o -> B o", "cannot be read: 'B'"),
    ],
)
def test_what_cannot_be_declared(op: str, text: str, words: str) -> None:
    with pytest.raises(RuleError, match=words):
        autopar.rule(op, text)


def test_a_rule_for_other_operands() -> None:
    graph, node = project()
    autopar.rule(PROJECT, "b i, i o -> b o, b")
    with pytest.raises(RuleError, match="is for 2 operands and 2 outputs; this call has 2 and 1"):
        rule_of(node, graph)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a b, b -> a b", "has 2 operands; the operator takes 1 tensors"),
        ("-> a", "has 0 operands; the operator takes 1 tensors"),
    ],
)
def test_a_rule_needs_a_term_for_each_tensor(text: str, said: str) -> None:
    with pytest.raises(RuleError, match=said):
        autopar.rule("autopar_tests::swiglu", text)


def test_optional_tensors_and_lists_need_no_term() -> None:
    for op, text in (("aten::renorm", "a b! -> a b!"), ("aten::histc", "a! -> b!")):
        autopar.rule(op, text)
    with pytest.raises(RuleError, match="has 4 operands; the operator takes 2 to 3 tensors"):
        autopar.rule("aten::multi_margin_loss", "a, b, c, d -> a")
