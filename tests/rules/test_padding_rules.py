"""Every statement about padding is proved by running: garbage goes into it, nothing comes out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from unittest import mock

import pytest
import torch

from autopar.ir.graph import Graph, Node, short
from autopar.ir.pads import Pad, padded_shape
from autopar.ops.operators import callable_of
from autopar.rules import padding as statements
from autopar.rules.declare import rule_of
from autopar.rules.instance import Instance
from autopar.rules.local import with_sizes
from autopar.rules.padding import (
    PADDABLE,
    ignored_index,
    padding_way,
    singular_places,
    target_place,
)
from autopar.rules.prove.check import run
from autopar.rules.prove.simulate import error
from autopar.rules.text import Term
from autopar.sharding.padding.spread import Touch
from autopar.sharding.padding.states import made_state, to_be_zeroed
from tests.rules.building import Example, build
from tests.rules.examples import EXAMPLES
from tests.rules.prove import reference

MORE = 3
"""So many entries are added to a factor."""
SAME = 1e-9


@dataclass(frozen=True)
class Statement:
    """One factor of one example, and how it may be padded."""

    example: Example
    factor: str
    way: str

    def __str__(self) -> str:
        return f"{self.example.name}-{self.factor}-{self.way}"


def statements_of(example: Example) -> Iterator[Statement]:
    graph, node = build(example)
    if short(node.op) not in PADDABLE:
        return
    instance = rule_of(node, graph)
    for factor in instance.shardable:
        way = padding_way(node, instance, factor)
        if way is not None:
            yield Statement(example, factor, way)


STATEMENTS = [statement for example in EXAMPLES for statement in statements_of(example)]


def lies(instance: Instance, term: Term, factor: str) -> Pad | None:
    shard = instance.shard(term, factor, 1)
    if shard is None:
        return None
    size = instance.sizes[factor]
    dim = term.dims[shard.dim]
    after = 1
    for inner in dim[dim.index(factor) + 1 :]:
        after *= instance.sizes[inner]
    return Pad(shard.dim, size, size + MORE, shard.of, after)


def touch_of(node: Node, instance: Instance, factor: str, way: str) -> Touch:
    read = {
        p: pad for p, t in enumerate(instance.rule.inputs) if (pad := lies(instance, t, factor))
    }
    made = {
        p: pad for p, t in enumerate(instance.rule.outputs) if (pad := lies(instance, t, factor))
    }
    return Touch(factor, way, read, made)  # type: ignore[arg-type]


def stretched(x: torch.Tensor, pad: Pad, fill: str, generator: torch.Generator) -> torch.Tensor:
    """The tensor with garbage, zeros or copies of the last entry behind its entries."""
    apart = x.unflatten(pad.dim, (pad.before, pad.size, pad.after))
    place = pad.dim + 1
    more = torch.cat([apart.narrow(place, pad.size - 1, 1)] * MORE, place)
    if fill == "zero":
        more = torch.zeros_like(more)
    elif fill == "garbage" and x.is_floating_point():
        more = torch.randn(more.shape, generator=generator, dtype=x.dtype)
    return torch.cat([apart, more], place).flatten(pad.dim, pad.dim + 2)


def cut(x: torch.Tensor, pad: Pad) -> tuple[torch.Tensor, torch.Tensor]:
    """The true entries, and those in the padding."""
    apart = x.unflatten(pad.dim, (pad.before, pad.to, pad.after))
    true, extra = apart.split([pad.size, MORE], pad.dim + 1)
    return true.flatten(pad.dim, pad.dim + 2), extra


def prove(statement: Statement, way: str | None = None) -> None:
    """Raise unless padding changes neither results nor gradients."""
    graph, node = build(statement.example)
    whole = reference(graph, node)
    instance = rule_of(node, graph)
    touch = touch_of(node, instance, statement.factor, way or statement.way)
    for fills in ways_to_fill(node, instance, touch):
        check(graph, node, whole, instance, touch, fills)


def ways_to_fill(node: Node, instance: Instance, touch: Touch) -> Iterator[dict[int, str]]:
    """What stands in each operand's padding, in every way that the statement allows."""
    if touch.way == "zeros":
        zeroed = to_be_zeroed(instance, touch, lambda _: "finite")
        for group in {zeroed, *(tuple(sorted(g)) for g in instance.linear)}:
            if any(place in touch.read for place in group):
                yield {place: "zero" if place in group else "garbage" for place in touch.read}
        return
    if touch.way == "ignored":
        target = target_place(node)
        yield {place: "ignored" if place == target else "garbage" for place in touch.read}
        return
    if touch.way == "regular":
        singular = singular_places(node)
        yield {place: "copy" if place in singular else "garbage" for place in touch.read}
        yield {place: "copy" if place in singular else "zero" for place in touch.read}
        return
    yield dict.fromkeys(touch.read, "zero" if touch.way == "alike" else "garbage")
    if touch.way == "free":
        yield dict.fromkeys(touch.read, "zero")
        for group in instance.linear:
            yield {place: "zero" if place in group else "garbage" for place in touch.read}


def check(
    graph: Graph,
    node: Node,
    whole: object,
    instance: Instance,
    touch: Touch,
    fills: dict[int, str],
) -> None:
    generator = torch.Generator().manual_seed(7)
    operands = list(whole.operands)  # type: ignore[attr-defined]
    for place, pad in touch.read.items():
        operands[place] = stretched(operands[place], pad, fills[place], generator)
        if fills[place] == "ignored":
            operands[place].narrow(pad.dim, pad.size, MORE).fill_(ignored_index(node))
    fed = [
        stretched(g, touch.made[place], "zero", generator) if place in touch.made else g
        for place, g in enumerate(whole.fed)  # type: ignore[attr-defined]
    ]
    shapes = tuple(
        padded_shape(t.shape, [touch.made[i]] if i in touch.made else [])
        for i, t in enumerate(node.outputs)
    )
    args, kwargs = with_sizes(node, shapes)
    if touch.way == "counted":
        args = (*args, *(None, -100, 0.0)[len(args) - 2 :], touch.read[0].size)
    made, gradients = run(graph, node, callable_of(node.op), (args, kwargs), operands, fed)
    for place, (got, want) in enumerate(zip(made, whole.outputs, strict=True)):  # type: ignore[attr-defined]
        if place in touch.made:
            got, extra = cut(got, touch.made[place])
            state = made_state(
                node, instance, touch, lambda p: fills[p] if fills[p] == "zero" else "finite"
            )  # type: ignore[arg-type, return-value]
            assert state != "zero" or not extra.any(), "what was called zero is not"
        assert error(got, want) <= SAME, f"output {place}"
    check_gradients(touch, fills, gradients, whole.gradients)  # type: ignore[attr-defined]


def check_gradients(
    touch: Touch,
    fills: dict[int, str],
    gradients: list[torch.Tensor | None],
    want: list[torch.Tensor | None],
) -> None:
    """True entries have the whole operator's gradient; padding has none where nobody cuts it off."""
    for place, (got, true) in enumerate(zip(gradients, want, strict=True)):
        if got is None or true is None:
            assert got is true
            continue
        if place in touch.read:
            got, extra = cut(got, touch.read[place])
            cut_off = touch.way == "alike" or (fills[place] == "zero" and touch.way == "zeros")
            assert cut_off or not extra.any(), f"a gradient in the padding of operand {place}"
        assert error(got, true) <= SAME, f"gradient of operand {place}"


@pytest.mark.parametrize("statement", STATEMENTS, ids=str)
def test_statement(statement: Statement) -> None:
    prove(statement)


def test_every_operator_is_shown() -> None:
    """Nothing may be padded that no example shows."""
    shown = {short(build(s.example)[1].op) for s in STATEMENTS}
    assert shown >= PADDABLE, sorted(PADDABLE - shown)


def test_what_is_not_stated_may_not_be_padded() -> None:
    """Whole factors, other operators, and everything that is not a declared rule."""
    for example in EXAMPLES:
        graph, node = build(example)
        instance = rule_of(node, graph)
        for factor in instance.rule.whole:
            assert padding_way(node, instance, factor) is None
        if short(node.op) not in PADDABLE or not instance.declared:
            assert not any(padding_way(node, instance, f) for f in instance.sizes)
        discovered = replace(instance, source="discovered")
        assert not any(padding_way(node, discovered, f) for f in instance.sizes)


WRONG = [
    ("cross_entropy_sum", "ignored", "free"),
    ("mse_loss", "alike", "free"),
    ("div", "regular", "free"),
    ("linear", "zeros", "free"),
    ("sum", "zeros", "free"),
    ("cross_entropy_sum", "counted", "free"),
]


@pytest.mark.parametrize(("name", "way", "wrong"), WRONG)
def test_wrong_statements_are_caught(name: str, way: str, wrong: str) -> None:
    """A statement that allows too much fails on some example."""
    suitable = [s for s in STATEMENTS if short(build(s.example)[1].op) == name and s.way == way]
    caught = 0
    for statement in suitable:
        try:
            prove(statement, wrong)
        except AssertionError:
            caught += 1
    assert suitable and caught


def test_wrong_lists_are_caught() -> None:
    """An operator in the wrong list: a variance is no sum."""
    every = statements.PADDABLE | {"count_nonzero", "nansum"}
    with mock.patch.multiple(statements, PADDABLE=every):
        found = [
            s
            for e in EXAMPLES
            if e.name.startswith(("count_nonzero", "nansum"))
            for s in wrong_of(e)
        ]
        assert found
        for statement in found:
            with pytest.raises(AssertionError):
                prove(statement)


def wrong_of(example: Example) -> Iterator[Statement]:
    graph, node = build(example)
    instance = rule_of(node, graph)
    for factor in instance.shardable:
        if factor in instance.rule.summed:
            yield Statement(example, factor, "free")
