"""What stages spend, against the estimate of the same plan; sums over pieces against whole ranges."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from autopar.capture.saved import saved
from autopar.cost.operators import operator_seconds
from autopar.cost.spent import spent_by
from autopar.ir.blocks import MODES, Recompute, block_of, blocks
from autopar.ir.graph import Graph
from autopar.ir.mesh import Mesh
from autopar.ir.split import split
from autopar.memory.shards import local_nbytes
from autopar.pipeline.build.choose import Source
from autopar.pipeline.build.figures import Cut, Piece, Pieces
from autopar.pipeline.build.positions import places
from autopar.pipeline.build.sizes import Sizes
from autopar.pipeline.build.stage_tables import ModelStageTable, StageTableBuilder
from autopar.pipeline.build.submesh_sharding import decide, of_pieces
from autopar.pipeline.planner import ONE_F_ONE_B
from autopar.pipeline.planner.table import Array
from autopar.sharding.asked import preset_constraints
from autopar.sharding.compile import compile_graph
from autopar.sharding.sharding_problem import Settings, pose, prices_of
from cost_models.hardware import load
from cost_models.ops import op_seconds
from tests.daily import daily
from tests.pipeline.build.cases import source


@pytest.mark.parametrize("name", daily(["gpt2", "llama", "mlp"], ["gpt2", "mlp"]))
@pytest.mark.parametrize("recompute", [None, "selective", "full"])
def test_adds_up_to_the_estimate(name: str, recompute: str | None) -> None:
    mesh, hardware = Mesh.of(2, 2), load("a100")
    layers = {} if name == "mlp" else {"layers": 2}
    graph = _whole(name, mesh, **layers)
    if recompute and not blocks(graph):
        pytest.skip("nothing to recompute")
    settings = Settings(recompute=recompute)  # type: ignore[arg-type]
    kept = saved(graph)
    posed = pose(graph, mesh, hardware, settings, kept, None)
    plan = posed.plan(posed.solve())
    spent = spent_by(plan, graph, prices_of(mesh, hardware, settings), kept)
    estimate = plan.estimate
    assert spent.microbatch_s + spent.once_s == pytest.approx(estimate.step_s)
    assert spent.hidden_s == pytest.approx(estimate.hidden_s)
    assert spent.kept_nbytes == estimate.activation_nbytes
    assert spent.working_nbytes == estimate.working_nbytes
    rest = estimate.parameter_nbytes + estimate.gradient_nbytes + estimate.optimizer_nbytes
    assert spent.rest_nbytes == rest
    assert min(spent.forward_s, spent.input_grad_s, spent.weight_grad_s, spent.exposed_s) >= 0
    if name != "mlp":  # a block that is recomputed puts nothing off, the output layer does
        assert spent.weight_grad_s > 0


@pytest.mark.parametrize("preset", ["ddp", "megatron"])
def test_each_microbatch_but_the_first_adds_its_gradients(preset: str) -> None:
    """Two reads and a write of every weight's gradient, as one rank has it; the solver knows."""
    graph, mesh, hardware = _whole("mlp", Mesh.of(2)), Mesh.of(2), load("a100")
    kept, names = saved(graph), preset_constraints(preset, mesh)
    seconds, objectives = [], []
    for microbatches in (1, 4):
        settings = Settings(microbatches=microbatches, preset=preset, constraints=names)
        posed = pose(graph, mesh, hardware, settings, kept)
        plan = posed.plan(posed.solve())
        spent = spent_by(plan, graph, posed.prices, kept)
        seconds.append(spent.weight_grad_s)
        objectives.append(plan.objective_s - spent.microbatch_s - spent.once_s / microbatches)
    leaf = {node.target: node.outputs[0] for node in graph.leaves("parameter")}
    device = load("a100").device_shared_by(2)
    want = sum(
        op_seconds(0, 3 * local_nbytes(leaf[p.name], p.leaf, mesh), "float32", device)
        for p in plan.parameters
    )
    assert seconds[1] - seconds[0] == pytest.approx(0.75 * want)
    # What is left between both is how buckets are priced, once a step.
    assert abs(objectives[1]) <= abs(objectives[0]) + 0.01 * want


def _whole(name: str, mesh: Mesh, **config: int) -> Graph:
    if name != "mlp":
        return source(name, mesh, **config).whole
    from autopar.api import captured_graph
    from tests import models

    model, batch, loss = models.mlp()
    return captured_graph(model, batch, loss=loss)


@pytest.mark.parametrize(("name", "products"), [("llama", "aten.linear"), ("gpt2", "aten.addmm")])
def test_weight_gradients_are_those_of_products(name: str, products: str) -> None:
    """On one device nothing is sent: a linear layer's backward is half for its weight, be there a bias,
    or the first block's input made of parameters alone."""
    graph, hardware, mesh = source(name, Mesh.of(1), layers=2).whole, load("a100"), Mesh.of(1)
    kept = saved(graph)
    made = compile_graph(graph, mesh, hardware, Settings(), kept)
    prices = prices_of(mesh, hardware, Settings())
    want = sum(
        operator_seconds(node, made.plan.choice[node.name], graph, prices).backward_s / 2
        for node in graph.nodes
        if node.op.startswith((products, "aten.linear"))
    )
    assert spent_by(made.plan, graph, prices, kept).weight_grad_s == pytest.approx(want)


@pytest.fixture(scope="module")
def swept() -> tuple[Source, StageTableBuilder, ModelStageTable]:
    """A table of a model of three blocks, which folding leaves as it is, on two devices."""
    mesh = Mesh.of(2)
    found = source("llama", mesh, layers=3)
    sizes = Sizes(found.batch, found.whole, found.capture)
    sweep = StageTableBuilder(
        found.whole, places(found.whole), sizes, mesh, load("a100"), Settings(), 80e9
    )
    return found, sweep, sweep.tabled((ONE_F_ONE_B,), (2,))


@pytest.mark.thorough
def test_sums_are_what_a_range_spends(
    swept: tuple[Source, StageTableBuilder, ModelStageTable],
) -> None:
    """The same decisions for a range in one piece: at rest the same, seconds but for latencies."""
    found, sweep, tabled = swept
    (table,) = tabled.problem.tables
    graph = found.capture(found.batch // table.microbatches)
    start, end = 1, len(sweep.places.positions) - 2
    at = start, end
    piece = split(graph, (sweep.places.cut(start), sweep.places.cut(end))).graphs[1]
    kept = saved(graph)
    for way in table.ways:
        if "+" in way.name:
            continue
        decided = tabled.decided[way.name]
        mode: Recompute = next((m for m in ("full", "selective") if m in way.name), "none")
        prices = prices_of(decided.mesh, sweep.hardware, sweep.settings)
        (chosen,) = of_pieces(decided, graph, [piece])
        cut = Cut(found.batch // table.microbatches, (piece,), kept)
        (under,) = Pieces(prices, "float32").of((chosen,), (cut, cut))
        whole = under.spent(cut, table.microbatches, mode, operator_seconds)
        assert way.rest_nbytes[at] == whole.rest_nbytes
        for mine, theirs in [
            (way.forward_s[at], whole.forward_s),
            (way.seconds[at], whole.microbatch_s),
            (way.exposed_s[at] + way.hideable_s[at], whole.exposed_s + whole.hideable_s),
        ]:
            assert theirs * (1 - 1e-9) <= mine <= 1.35 * theirs
        # A block that is recomputed piece by piece keeps what each of them reads: never too little.
        assert whole.kept_nbytes <= 1.001 * way.kept_nbytes[at]
        if mode == "none":
            # What both sides of a piece's border keep counts twice.
            assert way.kept_nbytes[at] <= 1.25 * whole.kept_nbytes
            # At the highest point of a range, later pieces have let go of what they kept.
            assert whole.working_nbytes <= way.working_nbytes[at]
            peak = way.kept_nbytes[at] + way.working_nbytes[at]
            assert peak <= 1.35 * (whole.kept_nbytes + whole.working_nbytes)


def test_blocks_take_two_modes_in_turn(
    swept: tuple[Source, StageTableBuilder, ModelStageTable],
) -> None:
    """Of three neighbours one or two spend what they do in the first mode, the others in the second."""
    found, sweep, tabled = swept
    (table,) = tabled.problem.tables
    named = {way.name: way for way in table.ways}
    of_block = [block_of(found.whole.node[cut].origin) for cut in sweep.places.pieces]
    starts = [of_block.index(("model.layers", number)) + 1 for number in range(3)]
    every = starts[0], len(sweep.places.positions) - 1
    mixes = [name for name in named if "+" in name]
    assert {name.rsplit(" ", 1)[1] for name in mixes} == {
        "none+none+selective", "none+selective+selective",
        "selective+selective+full", "selective+full+full",
    }  # fmt: skip
    for name in mixes:
        mixed = named[name]
        bare, modes = name.rsplit(" ", 1)
        pure = [named[bare if m == "none" else f"{bare} {m}"] for m in modes.split("+")]
        for mine, at in zip(pure, itertools.pairwise(starts), strict=False):
            assert mixed.kept_nbytes[at] == pytest.approx(mine.kept_nbytes[at])
            assert mixed.seconds[at] == pytest.approx(mine.seconds[at])
        assert pure[0].kept_nbytes[every] > mixed.kept_nbytes[every] > pure[-1].kept_nbytes[every]
        assert pure[0].seconds[every] < mixed.seconds[every] < pure[-1].seconds[every]


@pytest.mark.thorough
@pytest.mark.parametrize("mode", daily(MODES, ["selective"]))
def test_between_two_sizes_what_is_issued_lies_on_a_line(mode: Recompute) -> None:
    mesh, prices = Mesh.of(2, 2), prices_of(Mesh.of(2, 2), load("a100"), Settings())
    found = source("gpt2", mesh, layers=3)
    sizes = Sizes(found.batch, found.whole, found.capture)
    sweep = StageTableBuilder(
        found.whole, places(found.whole), sizes, mesh, load("a100"), Settings(), 80e9
    )
    graphs = {samples: sizes(samples) for samples in (2, 4, 8)}
    for decided in decide(graphs[2], mesh, load("a100"), Settings(), 4):
        cuts = [sweep.cut(sized) for sized in graphs.values()]
        chosen = of_pieces(decided, graphs[2].graph, cuts[0].pieces)
        line = Pieces(prices, "float32").of(chosen, (cuts[0], cuts[2]))
        direct = Pieces(prices, "float32").of(chosen, (cuts[1], cuts[1]))
        for mine, theirs in zip(line, direct, strict=True):
            one, other = (p.spent(cuts[1], 2, mode, operator_seconds) for p in (mine, theirs))
            assert one.working_nbytes >= other.working_nbytes
            assert replace(one, working_nbytes=other.working_nbytes) == other


def test_pieces_that_differ_in_names_are_priced_once() -> None:
    """And cost what they cost by themselves."""
    mesh, prices = Mesh.of(2), prices_of(Mesh.of(2), load("a100"), Settings())
    found = source("gpt2", mesh, layers=3)
    sizes = Sizes(found.batch, found.whole, found.capture)
    sweep = StageTableBuilder(
        found.whole, places(found.whole), sizes, mesh, load("a100"), Settings(), 80e9
    )
    cut = sweep.cut(sizes(found.batch))
    assert len(set(cut.kinds)) < len(cut.kinds)
    for decided in decide(sizes(found.batch), mesh, load("a100"), Settings(), 1):
        chosen = of_pieces(decided, sizes(found.batch).graph, cut.pieces)
        together = Pieces(prices, "float32").of(chosen, (cut, cut))
        assert len(set(map(id, together))) < len(together)
        alone = [Piece(i, one, (cut, cut), prices, "float32") for i, one in enumerate(chosen)]
        for mode in MODES:
            for one, other in zip(together, alone, strict=True):
                assert one.spent(cut, 2, mode, operator_seconds) == other.spent(
                    cut, 2, mode, operator_seconds
                )


@pytest.mark.thorough
def test_middle_blocks_count_like_the_second() -> None:
    """Of four blocks more, folding makes four more of the same pieces."""
    short, long = (_totals(layers) for layers in (3, 7))
    for few, many in zip(short, long, strict=True):
        per_block = (many.shape[0] - few.shape[0]) // 4
        second = few[3, 3 + per_block]
        assert many[0, -1] - few[0, -1] == pytest.approx(4 * second)


def _totals(layers: int) -> list[Array]:
    mesh = Mesh.of(1)
    found = source("llama", mesh, layers=layers)
    sizes = Sizes(found.batch, found.whole, found.capture)
    sweep = StageTableBuilder(
        found.whole, places(found.whole), sizes, mesh, load("a100"), Settings(), 80e9
    )
    (table,) = sweep.tabled((ONE_F_ONE_B,), (2,)).problem.tables
    return [way.seconds for way in table.ways if way.name == "1 #0"]


def test_a_parameter_read_twice_rests_once() -> None:
    """Tied embeddings: a range that holds both readers has them once, two stages one each."""
    mesh = Mesh.of(1)
    found = source("gpt2", mesh, layers=2)
    sizes = Sizes(found.batch, found.whole, found.capture)
    sweep = StageTableBuilder(
        found.whole, places(found.whole), sizes, mesh, load("a100"), Settings(), 80e9
    )
    (table,) = sweep.tabled((ONE_F_ONE_B,), (2,)).problem.tables
    rest = table.ways[0].rest_nbytes
    embedding = 64 * 32 * 4 * 4  # weight, gradient and two states
    apart = rest[0, 3] + rest[3, -1]
    assert apart - rest[0, -1] == embedding
