"""Batches of any nesting, and ranks whose batches do not belong together."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import autopar
from autopar.errors import InputError
from autopar.request.batch import Batch
from autopar.runtime.surroundings import KEYS, MOST, Kept
from tests.habits import batch_jobs as jobs
from tests.pool import Pool


@pytest.mark.parametrize("kind", ["dict", "deep", "dataclass", "empty key", "int key"])
def test_nested_batches(pool: Pool, kind: str) -> None:
    assert max(pool.run(2, jobs.nested, kind)) < 1e-9


def test_nested_batches_in_stages(pool: Pool) -> None:
    assert max(pool.run(2, jobs.nested_in_stages)) < 1e-9


class Opaque:
    """No container that anybody knows, with a text that says nothing."""

    def __init__(self, inside: Any) -> None:
        self.inside = inside

    def __repr__(self) -> str:
        return "Opaque()"


class Slotted:
    """The same, its attribute in a slot."""

    __slots__ = ("inside",)

    def __init__(self, inside: Any) -> None:
        self.inside = inside


X = torch.ones(4, 4)


@pytest.mark.parametrize(
    "value",
    [
        Opaque(X),
        Opaque([{"a": X}]),
        Slotted(X),
        Slotted((X,)),
        (lambda t: lambda: t)(X),
        {X},
        {X: 1},
    ],
)
def test_hidden_tensors_are_refused(value: Any) -> None:
    with pytest.raises(InputError, match=r"'.*batch'.*tensor"):
        autopar.plan(jobs.Nested(), 2, {"batch": X, "scale": {"batch": value}})


def test_the_remedy_works() -> None:
    class Mine(Opaque):
        pass

    torch.utils._pytree.register_pytree_node(
        Mine, lambda b: ([b.inside], None), lambda tensors, _: Mine(*tensors)
    )
    assert Batch.of((), {"b": Mine(X)}).tensors.keys() == {"b.0"}


def test_equal_texts_are_not_equal_batches() -> None:
    one, two, three = (Batch.of((), {"b": Opaque(n)}).signature for n in (1, 2, 1))
    assert one != two
    assert one == three


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("step", [0, 2])
def test_other_batches_of_a_rank_are_named(pool: Pool, step: int, values: bool) -> None:
    for text, seconds in pool.run(2, jobs.differs, step, False, values):
        assert "Ranks disagree" in text and "batch" in text
        assert seconds < 20


@pytest.mark.parametrize("step", [0, 2])
def test_other_shapes_of_local_parts_are_named(pool: Pool, step: int) -> None:
    for text, seconds in pool.run(2, jobs.differs, step, True, False):
        assert "[1, 4]" in text and "Batches(local=True)" in text
        assert seconds < 20


@pytest.mark.thorough
def test_numbers_that_vary_are_warned_of(pool: Pool) -> None:
    for programs, said, worst in pool.run(2, jobs.numbers, False):
        assert (programs, said) == (7, 1)
        assert worst < 1e-9


def test_a_tensor_in_place_of_a_number_needs_one_plan(pool: Pool) -> None:
    for programs, said, worst in pool.run(2, jobs.numbers, True):
        assert (programs, said) == (1, 0)
        assert worst < 1e-9


def test_programs_are_bounded() -> None:
    first = object()
    kept = Kept({0: first})
    for key in range(1, 3 * MOST):
        kept.keep(key, object(), first)
        assert kept.use(key)
    assert len(kept) == MOST
    assert kept[0] is first


def test_programs_are_lost_with_all_their_keys() -> None:
    """One rank may have many keys for a program; it still loses the same programs as the others."""
    programs = [object() for _ in range(3 * MOST)]
    one, other = Kept({0: programs[0]}), Kept({0: programs[0]})
    for number, program in enumerate(programs[1:], 1):
        one.keep((number, 0), program, programs[0])
        for alias in range(3 * KEYS):
            other.keep((number, alias), program, programs[0])
    assert {*map(id, one.values())} == {*map(id, other.values())}
    assert len({*map(id, one.values())}) == MOST
    assert len(other) <= MOST * KEYS
