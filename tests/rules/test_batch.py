"""Where the batch is, followed through operators: moved, merged, taken from readers, lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from autopar.capture import capture
from autopar.compile.outputs import with_outputs
from autopar.errors import ConstraintError
from autopar.ir.graph import Graph, short
from autopar.ir.mesh import Mesh
from autopar.ir.placement import S
from autopar.request.constraints import BATCH, SEQUENCE, from_user
from autopar.sharding.sharding_problem import Settings, candidates_of, where_is

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Steps(nn.Module):
    """What a step makes of eight samples [4, 6] and a weight [1, 6]."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.step = step
        self.weight = nn.Parameter(torch.ones(1, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.step(x * self.weight, self.weight).square().sum()


def graph_of(step: Step) -> Graph:
    return with_outputs(capture(Steps(step).train(), {"x": torch.randn(8, 4, 6)}), ())


def dims_of(step: Step, op: str, place: int = 0) -> tuple[S | None, ...]:
    """Of one of the operators of this name, the first."""
    graph = graph_of(step)
    named = [node.name for node in graph.nodes if short(node.op) == op]
    return where_is(BATCH, graph)[named[place]]


@pytest.mark.parametrize(
    ("step", "op", "dims"),
    [
        (lambda x, w: x.permute(2, 0, 1), "permute", (S(0), S(1))),
        (lambda x, w: x.reshape(-1, 6), "reshape", (S(0), S(0))),
        (lambda x, w: x.transpose(0, 1).reshape(-1, 6), "reshape", (S(1), S(0, 4))),
        (lambda x, w: torch.cat([x, x]), "cat", (S(0), S(0), S(0, 2))),
        (lambda x, w: torch.einsum("bij,kj->ki", x, w), "einsum", (S(0), None, None)),
        (lambda x, w: x.sum(0), "sum", (S(0), None)),
    ],
)  # fmt: skip
def test_it_goes_where_the_rule_says(step: Step, op: str, dims: tuple[S | None, ...]) -> None:
    assert dims_of(step, op) == dims


def test_merged_dims_come_apart_again() -> None:
    def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1).reshape(-1, 6).reshape(4, 8, 6)

    assert dims_of(step, "reshape", 1) == (S(0, 4), S(1))


def test_what_is_of_parameters_alone_takes_it_from_its_readers() -> None:
    def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.cat([w.expand(8, 1, 6), x], 1)

    assert dims_of(step, "expand") == (None, S(0))
    assert dims_of(step, "cat") == (S(0), S(0), S(0))


def test_operators_that_mix_samples_lose_it() -> None:
    assert dims_of(lambda x, w: x.cumsum(0) + w, "cumsum") == (None, None)


def test_of_two_batches_in_one_operator_the_first_operand_s_counts() -> None:
    def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x[:, 0] @ x[:, 1].t()

    assert dims_of(step, "matmul") == (S(0), None, S(0))


def test_a_pin_on_the_batch_is_met_wherever_it_is() -> None:
    graph, mesh = graph_of(lambda x, w: x.transpose(0, 1)), Mesh.of(2)
    pinned = from_user({"*transpose": "[S(batch)]"}, mesh)
    kept = candidates_of(graph, mesh, Settings(constraints=pinned)).operators["transpose"]
    assert [str(option) for option in kept] == ["[S(0)] -> [S(1)]"]


def test_a_pin_on_the_batch_of_what_has_none_is_refused() -> None:
    graph, mesh = graph_of(lambda x, w: x + w.exp()), Mesh.of(2)
    pinned = from_user({"*exp": "[S(batch)]"}, mesh)
    with pytest.raises(ConstraintError, match="has no batch dim"):
        candidates_of(graph, mesh, Settings(constraints=pinned))


def test_positions_go_where_the_rule_says() -> None:
    graph = graph_of(lambda x, w: x.transpose(1, 2).reshape(8, 2, 3, 4))
    named = {short(node.op): node.name for node in graph.nodes}
    found = where_is(SEQUENCE, graph)
    assert found[named["transpose"]] == (S(1), S(2))
    assert found[named["reshape"]] == (S(2), S(3))


def test_a_pin_on_the_sequence_of_what_has_none_is_refused() -> None:
    graph, mesh = graph_of(lambda x, w: x + w.exp()), Mesh.of(2)
    pinned = from_user({"*exp": "[S(sequence)]"}, mesh)
    with pytest.raises(ConstraintError, match="has no sequence dim"):
        candidates_of(graph, mesh, Settings(constraints=pinned))


def test_rows_of_numbers_have_no_positions() -> None:
    """Features of a sample are no sequence; ids are."""
    x = capture(nn.Linear(6, 4), {"input": torch.randn(8, 6)}, loss=lambda y: y.sum())
    ids = capture(nn.Embedding(6, 4), {"input": torch.zeros(8, 6).long()}, loss=lambda y: y.sum())
    assert set(where_is(SEQUENCE, x)["linear"]) == {None}
    assert where_is(SEQUENCE, ids)["embedding"] == (None, S(1), S(1))


def test_one_constraint_is_not_on_both() -> None:
    with pytest.raises(ConstraintError, match="one of them"):
        from_user({"*": "[S(batch) | S(sequence)]"}, Mesh.of(2))
