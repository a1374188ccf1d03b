"""Tiles between meshes: every rank of the target gets what it should hold, each element once."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.ir.mesh import Mesh
from autopar.ir.placement import S, Sharding
from autopar.rules.candidates import batch_forms
from autopar.runtime.pipeline.tiles import Layout, cut, messages, paste
from autopar.runtime.shards import part

MESHES = [Mesh.of(1), Mesh.of(2), Mesh.of(3), Mesh.of(4), Mesh.of(2, 2), Mesh.of(2, 3)]
SHAPE = (12, 8, 6)


def forms(mesh: Mesh) -> list[Sharding]:
    """Everything that fits: whole, plain and strided splits, two axes on one dim."""
    kinds = [Sharding.parse("[I]")[0], *(S(dim, of) for dim in range(3) for of in (1, 2, 3))]
    every = (Sharding(types) for types in itertools.product(kinds, repeat=len(mesh)))
    return [form for form in every if form.fits(SHAPE, mesh)]


FORMS = {mesh: forms(mesh) for mesh in MESHES}


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    mesh = draw(st.sampled_from(MESHES))
    form = draw(st.sampled_from(FORMS[mesh]))
    first = draw(st.integers(0, 8))
    return Layout(tuple(range(first, first + mesh.world_size)), mesh, form)


@settings(max_examples=300)
@given(layouts(), layouts())
def test_every_rank_gets_its_part(source: Layout, target: Layout) -> None:
    whole = torch.arange(12 * 8 * 6).reshape(SHAPE)
    held = {r: part(whole, source.form, source.mesh, source.mesh.coordinate(i))
            for i, r in enumerate(source.ranks)}  # fmt: skip
    got = {
        rank: torch.full(target.form.local_shape(SHAPE, target.mesh), -1) for rank in target.ranks
    }
    sent = dict.fromkeys(target.ranks, 0)
    for message in messages(SHAPE, source, target):
        box = cut(held[message.source], message.taken)
        assert tuple(box.shape) == message.shape
        paste(got[message.target], message.placed, box)
        sent[message.target] += box.numel()
        if message.target in source.ranks and message.source != message.target:
            # What a rank has itself does not travel.
            mine = set(held[message.target].flatten().tolist())
            assert not mine & set(box.flatten().tolist())
    for place, rank in enumerate(target.ranks):
        want = part(whole, target.form, target.mesh, target.mesh.coordinate(place))
        assert torch.equal(got[rank], want)
        assert sent[rank] == want.numel()


def test_replicas_take_turns() -> None:
    source = Layout((0, 1, 2, 3), Mesh.of(4), next(iter(batch_forms(Mesh.of(4)))))
    target = Layout((4, 5, 6, 7), Mesh.of(4), next(iter(batch_forms(Mesh.of(4)))))
    assert [(m.source, m.target) for m in messages((4,), source, target)] == [
        (0, 4), (1, 5), (2, 6), (3, 7),
    ]  # fmt: skip


def test_a_scalar_travels() -> None:
    source, target = (
        Layout((0,), Mesh.of(1), Sharding.parse("[N]")),
        Layout((1, 2), Mesh.of(2), Sharding.parse("[N]")),
    )
    assert [(m.source, m.target, m.shape) for m in messages((), source, target)] == [
        (0, 1, ()), (0, 2, ()),
    ]  # fmt: skip
