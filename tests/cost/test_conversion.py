"""Routes: every pair of forms is reachable, each step is in the table, chains cost their sum."""

from __future__ import annotations

import itertools
import math

import pytest

from autopar.cost.prices import Prices
from autopar.cost.routes import Routes
from autopar.cost.sharding_graph import web_of
from autopar.ir.conversion import Copy, Step
from autopar.ir.graph import Tensor
from autopar.ir.mesh import Mesh
from autopar.ir.placement import I, N, P, R, S, Sharding
from cost_models.hardware import load

MESH = Mesh.of(2, 2)


def _bytes_price(step: Step, tensor: Tensor) -> float:
    issued = step.traffic(tensor.shape, tensor.itemsize, MESH, tensor.differentiable)
    return 1.0 + sum(part.nbytes for part in issued)


def _forms(differentiable: bool) -> list[Sharding]:
    letters = (R, I, P) if differentiable else (N, P)
    kinds = (*letters, S(0), S(1), S(0, 2), S(1, 3))
    every = (Sharding(pair) for pair in itertools.product(kinds, repeat=2))
    return [form for form in every if form.fits((8, 12), MESH)]


@pytest.mark.parametrize("differentiable", [True, False])
def test_every_pair_is_connected_by_table_steps(differentiable: bool) -> None:
    tensor = Tensor("t", (8, 12), "float32", differentiable)
    forms = _forms(differentiable)
    closure = Routes(MESH, _bytes_price, _bytes_price).closure(tensor, forms)
    for source, target in itertools.product(forms, repeat=2):
        path = closure.path(source, target)
        at = source
        for step in path:
            assert step.source == at
            assert step.collectives(differentiable) is not None
            at = step.target
        assert at == target
        total = sum(_bytes_price(step, tensor) for step in path)
        assert total == pytest.approx(closure.cost(source, target))


def test_a_price_of_another_shape_brings_no_step_of_it() -> None:
    """Prices are kept by size: a step along the third dim is none of a matrix."""
    routes = Routes(MESH, _bytes_price, _bytes_price)
    routes.closure(Tensor("t", (4, 6, 4), "float32", True), [Sharding((S(2), R)), Sharding((R, R))])
    tensor = Tensor("u", (8, 12), "float32", True)
    split, whole = Sharding((S(1), R)), Sharding((R, R))
    closure = routes.closure(tensor, [split, whole])
    found = closure.along(lambda step: _bytes_price(step, tensor), [split], [whole])
    assert found[0, 0] == closure.cost(split, whole)


def test_no_chain_beats_the_direct_price() -> None:
    tensor = Tensor("t", (8, 12), "float32", True)
    forms = _forms(True)
    closure = Routes(MESH, _bytes_price, _bytes_price).closure(tensor, forms)
    for a, b, c in itertools.product(forms[:14], repeat=3):
        assert closure.cost(a, c) <= closure.cost(a, b) + closure.cost(b, c) + 1e-9


@pytest.mark.parametrize("shape", [(8, 12), (4, 3), (6,), (1, 24)])
@pytest.mark.parametrize("differentiable", [True, False])
def test_a_web_has_every_form_and_each_step_at_its_own_price(
    shape: tuple[int, ...], differentiable: bool
) -> None:
    mesh = Mesh.of(2, 3)
    shards = (S(0), S(1), S(0, 3), S(1, 2))
    web = web_of(mesh, (shards, shards), shape, differentiable)
    kinds = (*((R, I, P) if differentiable else (N, P)), *shards)
    every = {Sharding(pair) for pair in itertools.product(kinds, repeat=2)}
    assert set(web.forms) == {form for form in every if form.fits(shape, mesh)}
    found = {}
    for layer in web.steps.layers:
        ends = zip(layer.sources.tolist(), layer.targets.tolist(), strict=True)
        found |= dict(zip(ends, layer.kinds.tolist(), strict=True))
    prices, tensor = Prices(mesh, load("v100")), Tensor("t", shape, "float32", differentiable)
    of_kind = [prices.step(step, tensor) for step in web.kinds.values()]
    for (here, a), (there, b) in itertools.permutations(enumerate(web.forms), 2):
        differing = [axis for axis in range(2) if a[axis] != b[axis]]
        step = Step(differing[0], a, b)
        is_one = len(differing) == 1 and step.fault(mesh, differentiable) is None
        assert ((here, there) in found) == is_one
        if is_one:
            assert of_kind[found[here, there]] == prices.step(step, tensor)


def test_gathering_the_outer_of_two_nested_axes_is_one_step() -> None:
    tensor = Tensor("t", (8, 12), "float32", True)
    nested, outer_gathered = Sharding((S(0), S(0, 2))), Sharding((R, S(0, 2)))
    closure = Routes(MESH, _bytes_price, _bytes_price).closure(tensor, (nested, outer_gathered))
    (step,) = closure.path(nested, outer_gathered)
    forward, backward = step.traffic((8, 12), 4, MESH, True)
    assert (forward.collective, backward.collective) == ("all_gather", "reduce_scatter")
    assert forward.nbytes == math.prod((4, 12)) * 4


def test_an_axis_of_one_device_costs_nothing() -> None:
    for target in (R, S(0)):
        step = Step(0, Sharding((I,)), Sharding((target,)))
        assert step.traffic((8,), 4, Mesh.of(1), True) == ()
        assert step.copies((8,), 4, Mesh.of(1), True) == ()


def test_a_slice_is_copied_as_it_is_and_what_is_filled_whole() -> None:
    step = Step(1, Sharding((S(0), R)), Sharding((S(0), S(1))))
    assert step.copies((8, 12), 4, MESH, True) == (
        Copy("forward", 4 * 4 * 6),
        Copy("backward", 4 * 4 * 12),
    )


def test_a_step_that_only_changes_the_type_is_free_where_nothing_is_sent() -> None:
    prices, tensor = Prices(MESH, load("cpu")), Tensor("t", (8, 12), "float32", True)
    step = Step(0, Sharding((I, I)), Sharding((R, I)))
    (summed,) = step.traffic(tensor.shape, tensor.itemsize, MESH, True)
    assert prices.step(step, tensor) == prices.awaited(summed)
    assert prices.forward(step, tensor) == 0.0


def test_tensors_of_one_size_have_steps_of_their_own() -> None:
    """Their prices are shared, but a step's dims are those of its tensor."""
    routes, seen = Routes(MESH, _bytes_price, _bytes_price), []
    for shape, split in (((4, 4, 8), S(2)), ((128,), S(0))):
        tensor, ends = Tensor("t", shape, "float32", True), (Sharding((R, split)), Sharding((R, R)))
        closure = routes.closure(tensor, ends)
        found = closure.along(lambda step: float(seen.append(step) or 1.0), ends[:1], ends[1:])
        assert found.tolist() == [[1.0]]
    assert [step.source[1] for step in seen] == [S(2), S(0)]
