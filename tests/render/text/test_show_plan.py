"""What people see of a plan: golden text, and laws that hold for any plan."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from autopar import compile_model
from autopar.ir.mesh import Mesh
from autopar.ir.placement import Sharding
from autopar.render.text import (  # fmt: skip
    communication,
    conversions,
    costs,
    operators,
    parameters,
    show_operators,
    show_plan,
    to_text,
)
from autopar.render.text.fold import Item, Row
from autopar.render.text.operators import Cells, folded
from autopar.render.text.parameters import used
from autopar.render.text.table import WIDTH
from autopar.sharding.sharding_problem import Compilation
from tests.models import CASES
from tests.render.text import hand_made


@pytest.fixture(scope="module")
def made() -> Compilation:
    """A small transformer under a preset that uses many types."""
    model, inputs, loss = CASES["gpt2"]()
    return compile_model(model, (2, 2), inputs, loss=loss, hardware="h100", preset="fsdp_megatron")


def test_golden(golden: Callable[[str, str], None]) -> None:
    plan = hand_made.plan()
    golden("show_plan.txt", to_text(show_plan(plan)) + "\n" + to_text(show_operators(plan)))


def test_blocks_appear_once() -> None:
    text = to_text(parameters(hand_made.plan()))
    assert text.count("mlp.up.weight") == 1
    assert "model.layers.0 ... 5" in text
    assert re.search(r"model\.layers\.0 \.\.\. 4 +x5\n  norm\.weight", text)
    assert "model.layers.5.norm.weight" in text


def test_names_are_broken_where_their_parts_meet() -> None:
    plan = hand_made.plan()
    long = "model.post_attention_layer_norm.multihead_projection_of_everything.weight"
    first = replace(plan.parameters[0], name=long)
    text = to_text(parameters(replace(plan, parameters=(first,), conversions=())), width=80)
    column = [line[:44].strip() for line in text.splitlines()[2:]]
    assert "model.post_attention_layer_norm" in column[0]
    assert all(re.match(r"[._]", part) for part in column[1:])


def test_nothing_is_wider_than_a_page(made: Compilation) -> None:
    for graph in (None, made.graph):
        for part in (show_plan(made.plan, graph), show_operators(made.plan, graph)):
            assert max(map(len, to_text(part).splitlines())) <= WIDTH


@pytest.mark.parametrize("sizes", [(2, 2, 2), (2, 2, 2, 2)])
def test_types_on_many_axes_are_broken_between_types(sizes: tuple[int, ...]) -> None:
    plan = hand_made.plan()
    mesh = Mesh.of(*sizes)
    deep = Sharding.parse(
        f"[{', '.join(f'S(0, of={2 ** (len(sizes) - 1 - i)})' for i in range(len(sizes)))}]"
    )
    found = tuple(replace(p, stored=deep, leaf=deep) for p in plan.parameters)
    text = to_text(parameters(replace(plan, mesh=mesh, parameters=found, conversions=())))
    assert max(map(len, text.splitlines())) <= WIDTH
    assert text.count("S(0, of=2)") == text.count("S(0, of=4)")
    assert not re.search(r"of=\n|S\(0,\n", text)
    assert text.count("mlp.up.weight") == 1


def test_every_parameter_is_shown_with_its_types(made: Compilation) -> None:
    text = to_text(parameters(made.plan, made.graph))
    for parameter in made.plan.parameters:
        tail = re.sub(r"^transformer\.h\.\d+\.", "", parameter.name)
        line = next(line for line in text.splitlines() if line.strip().startswith(f"{tail} "))
        assert str(parameter.stored) in line
        assert "x".join(map(str, parameter.shape)) in line


def test_uses_without_the_graph_agree_with_it(made: Compilation) -> None:
    exact, guessed = used(made.plan, made.graph), used(made.plan)
    assert exact.keys() == guessed.keys()
    assert all(set(guessed[name]) <= set(exact[name]) for name in exact)
    assert any("again" in form for forms in exact.values() for form in forms)


@pytest.mark.parametrize("with_graph", [False, True])
def test_operators_are_counted_completely(made: Compilation, with_graph: bool) -> None:
    computing = [c.sharding for c in made.plan.choices if c.sharding.inputs]
    whole = [s for s in computing if {"N"} == {str(k) for f in (*s.inputs, *s.outputs) for k in f}]
    items = folded(made.plan, made.graph if with_graph else None)
    assert _count(items) == len(computing) - len(whole)
    assert f"others, without gradient x{len(whole)} " in " ".join(
        to_text(operators(made.plan)).split()
    )


def test_operators_carry_their_modules_only_with_the_graph(made: Compilation) -> None:
    with_graph = to_text(operators(made.plan, made.graph))
    assert re.search(r"transformer\.h\.0, 1 +x2\n", with_graph)
    assert "attn.c_attn/addmm" in with_graph
    alone = to_text(operators(made.plan))
    assert "transformer.h" not in alone
    assert re.search(r"^c_attn +x2 ", alone, re.MULTILINE)
    assert re.search(r"^ln_1 +x2 ", alone, re.MULTILINE)


def test_free_conversions_are_only_counted(made: Compilation) -> None:
    lines = to_text(conversions(made.plan, made.graph)).splitlines()[2:]
    assert re.match(r"others, free +x\d+$", lines.pop())
    for line in lines:
        is_heading = re.search(r"\.h\.[01, ]+(x2)?$", line)
        assert is_heading or re.search("all_(gather|reduce|to_all)|reduce_scatter", line), line


def test_nothing_to_communicate() -> None:
    plan = hand_made.plan()
    silent = plan.with_estimate(replace(plan.estimate, flows=()))
    silent = replace(silent, conversions=())
    assert re.search(r"^none +0 +0 B +0 s$", to_text(communication(silent)), re.MULTILINE)
    assert re.search(r"others, free +x0$", to_text(conversions(silent)), re.MULTILINE)


def test_costs_name_every_kind_of_memory() -> None:
    text = to_text(costs(hand_made.plan()))
    for word in ("parameters", "gradients", "optimizer", "activations", "working set", "peak"):
        assert word in text
    assert "1.3 s" in text


def test_brackets_are_text_and_not_markup() -> None:
    plan = replace(hand_made.plan(), model="[red]Model[/red]", hardware="[bold]")
    assert "[red]Model[/red]" in to_text(show_plan(plan))


def _count(items: tuple[Item[Cells], ...]) -> int:
    return sum(
        item.count if isinstance(item, Row) else len(item.numbers) * _count(item.body)
        for item in items
    )


def test_the_representation_is_one_line(made: Compilation) -> None:
    """It may stand in a list, a debugger, or a log."""
    assert re.fullmatch(
        r"<Plan \w{12} of GPT2LMHeadModel on \(x=2, y=2\) of h100: "
        r"step [\d.]+ ms, [\d.]+ KiB per device>",
        repr(made.plan),
    ), repr(made.plan)
    assert re.fullmatch(
        r"<PipelinePlan \w+ of \w+ on \(.*\) of \w*, \d stages, [\w-]+(: step [\d.]+ .?s)?>",
        repr(hand_made.pipeline()),
    ), repr(hand_made.pipeline())
