"""The algebra of types: text round trips, fits, local shapes, nesting."""

from __future__ import annotations

import itertools
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.errors import MeshError, PlacementError
from autopar.ir.mesh import Mesh
from autopar.ir.placement import I, N, P, R, S, Sharding, Type, parse_type

TYPES: list[Type] = [R, I, P, N, S(0), S(1), S(0, 2), S(1, 3), S(0, 4)]


@given(st.lists(st.sampled_from(TYPES), min_size=1, max_size=3))
def test_shardings_print_and_parse(types: list[Type]) -> None:
    sharding = Sharding(tuple(types))
    assert Sharding.parse(str(sharding)) == sharding
    assert hash(Sharding.parse(str(sharding))) == hash(sharding)


def test_a_remembered_hash_does_not_travel() -> None:
    """Texts hash otherwise in another process."""
    sharding = Sharding((S(0), R))
    hash(sharding)
    there = pickle.loads(pickle.dumps(sharding))
    assert there == sharding and not hasattr(there, "_hash")


@pytest.mark.parametrize("text", ["", "S", "S(a)", "S(0, of=0)", "Q", "S(-1)"])
def test_malformed_types_are_refused(text: str) -> None:
    with pytest.raises(PlacementError, match="Cannot read"):
        parse_type(text)


@pytest.mark.parametrize("text", ["2x", "x=0", "a=2,a=2", "1-=3", "", "0x2"])
def test_malformed_meshes_are_refused(text: str) -> None:
    with pytest.raises(MeshError):
        Mesh.parse(text)


def test_meshes_print_and_parse() -> None:
    mesh = Mesh.parse("node=2, gpu=4")
    assert Mesh.parse(str(mesh)) == mesh
    assert mesh.world_size == 8
    assert mesh.coordinate(6) == (1, 2)
    assert mesh.stride(0) == 4
    assert Mesh.parse("2x4").names == ("x", "y")


def _cut(values: list[int], sharding: Sharding, mesh: Mesh, rank: int) -> list[int]:
    """The slow, obvious meaning of positions: keep the elements whose digit is ours."""
    kept = []
    for index, value in enumerate(values):
        mine = True
        for axis, kind in enumerate(sharding):
            if isinstance(kind, S):
                block = len(values) // (kind.of * mesh.sizes[axis])
                mine &= index // block % mesh.sizes[axis] == mesh.coordinate(rank)[axis]
        if mine:
            kept.append(value)
    return kept


def test_nesting_is_in_the_type() -> None:
    mesh = Mesh.of(2, 4)
    outer_first = Sharding((S(0), S(0, 2)))
    inner_first = Sharding((S(0, 4), S(0)))
    values = list(range(16))
    assert _cut(values, outer_first, mesh, 5) == [10, 11]
    assert _cut(values, inner_first, mesh, 5) == [6, 7]
    assert outer_first.local(1, mesh) == S(0)
    assert inner_first.local(0, mesh) == S(0)


def test_every_fitting_pair_of_splits_partitions_the_dim() -> None:
    mesh = Mesh.of(2, 3)
    for a, b in itertools.product([1, 2, 3, 6], repeat=2):
        sharding = Sharding((S(0, a), S(0, b)))
        if not sharding.fits((36,), mesh):
            continue
        parts = [_cut(list(range(36)), sharding, mesh, rank) for rank in range(6)]
        assert sorted(x for part in parts for x in part) == list(range(36))
        assert {len(part) for part in parts} == {sharding.local_shape((36,), mesh)[0]}


@pytest.mark.parametrize(
    ("sharding", "shape", "message"),
    [
        (Sharding((S(2), R)), (4, 4), "lacks"),
        (Sharding((S(0), S(0))), (8,), "overlapping"),
        (Sharding((S(0), R)), (7,), "size 7"),
        (Sharding((R,)), (8,), "1 types for the 2 axes"),
    ],
)
def test_what_does_not_fit_says_why(
    sharding: Sharding, shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(PlacementError, match=message):
        sharding.check(shape, Mesh.of(2, 2))
