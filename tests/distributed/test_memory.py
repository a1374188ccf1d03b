"""What the plan says about saved memory is what a tracker counts that knows nothing of the model."""

from __future__ import annotations

import gc
import itertools
from dataclasses import replace

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from autopar.ir.blocks import Recompute, blocks
from autopar.ir.mesh import Mesh
from autopar.request import presets
from autopar.sharding.compile import compile_graph
from autopar.sharding.sharding_problem import Settings
from cost_models.hardware import load as load_hardware
from tests import composite, heavy, parity, peaks
from tests.architectures import ARCHITECTURES, WORKAROUNDS
from tests.daily import daily
from tests.live import Allocations, LiveBytes
from tests.pool import Pool

SLACK = 0.15
"""Small tensors (counts, masks, the loss) that the estimate leaves out, relative to the whole."""
NEAR = 0.02
"""How close a plan's peak comes to what is counted."""
NEARER = 0.005
"""The same of presets."""
LAID_ANEW = [
    f"architectures.{name}"
    for name in ("gemma", "longformer_local", "mistral", "mixtral", "lstm", "convnext")
]
"""What conversions lay out anew, or what operators hold on shards, is a good part of these."""


SOME = [name for name in ARCHITECTURES if name not in WORKAROUNDS][::2]


def work(name: str, regather: bool, recompute: Recompute | None = None) -> tuple[parity.Work, int]:
    """The fsdp preset with weights gathered again or kept, and the predicted activation bytes."""
    case = parity.reference(name)
    mesh = Mesh.of(2)
    settings = Settings(
        optimizer="SGD",
        states=0.0,
        preset="fsdp",
        constraints=presets.load("fsdp", mesh),
        regather=regather,
        recompute=recompute,
    )
    made = compile_graph(case.graph, mesh, load_hardware("cpu"), settings, case.saved)
    work = parity.Work(name, str(regather), made.plan.to_json(), made.source)
    return work, made.plan.estimate.activation_nbytes


def live_after_forward(work: parity.Work) -> tuple[int, int]:
    """Live bytes between forward and backward, and after the gradients are gone."""
    parallel = parity.parallel_of(work)
    inputs = parity.reference(work.name).inputs
    parallel(**inputs).backward()
    parallel.zero_grad()
    gc.collect()
    with LiveBytes() as live:
        loss = parallel(**inputs)
        gc.collect()
        held = live.nbytes
        loss.backward()
    parallel.zero_grad()
    del loss
    gc.collect()
    return held, live.nbytes


@pytest.mark.slow
def test_regathered_weights_are_not_held(pool: Pool) -> None:
    kept, kept_predicted = work("gpt2", regather=False)
    regathered, regathered_predicted = work("gpt2", regather=True)
    held_kept, left = pool.run(2, live_after_forward, kept)[0]
    held_regathered, _ = pool.run(2, live_after_forward, regathered)[0]
    assert left <= 0.05 * held_kept, "the step leaks"
    for held, predicted in ((held_kept, kept_predicted), (held_regathered, regathered_predicted)):
        assert abs(held - predicted) <= SLACK * predicted, (held, predicted)
    saved = held_kept - held_regathered
    assert abs(saved - (kept_predicted - regathered_predicted)) <= SLACK * saved
    weights = sum(
        p.numel() * 8 for n, p in parity.reference("gpt2").model.named_parameters() if p.dim() > 1
    )
    assert saved >= 0.6 * weights, (saved, weights)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_recomputed_blocks_hold_what_is_predicted(pool: Pool, name: str) -> None:
    modes: tuple[Recompute, ...] = ("none", "selective", "full")
    works = [work(name, regather=True, recompute=mode) for mode in modes]
    held = [pool.run(2, live_after_forward, made)[0][0] for made, _ in works]
    for bytes_held, (_, predicted) in zip(held, works, strict=True):
        assert abs(bytes_held - predicted) <= SLACK * predicted, (held, [p for _, p in works])
    assert held[2] < 0.9 * held[1] < 0.8 * held[0]


EVERY_DAY = [("gpt2", 2, "full"), ("architectures.mixtral", 1, "none")]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "ranks", "recompute"),
    daily(
        [
            *itertools.product(["gpt2", "llama", "bert"], [1, 2], ["none", "full"]),
            *itertools.product(["cnn", "mlp", "architectures.mixtral"], [1, 2], ["none"]),
        ],
        EVERY_DAY,
    ),
)
def test_a_plans_peak_is_what_a_step_has_in_use(
    pool: Pool, name: str, ranks: int, recompute: Recompute
) -> None:
    """The plan's own figure, and the curve's highest point in each pass."""
    plan, made = peaks.planned(name, ranks, recompute)
    found, e = pool.run(ranks, peaks.peaks, made)[0], plan.estimate
    rest = e.memory_nbytes - e.activation_nbytes - e.working_nbytes
    assert rest == pytest.approx(found.rest, rel=0.001)
    assert e.memory_nbytes == pytest.approx(found.most, rel=NEAR)
    forward = rest + max(op.forward_nbytes for op in e.operators)
    backward = rest + max(op.backward_nbytes for op in e.operators)
    assert forward == pytest.approx(found.forward, rel=NEAR)
    assert backward == pytest.approx(found.backward, rel=NEAR)


PRESETS: list[tuple[str, str, Recompute]] = [
    *itertools.product(heavy.ALL, ["ddp", "zero2", "fsdp", "megatron", "megatron_sp"], ["none"]),
    *itertools.product(composite.ALL, ["ddp", "zero2", "megatron", "megatron_sp"], ["none"]),
    *itertools.product(["bert", "gpt2"], ["megatron", "megatron_sp"], ["none"]),
    ("composite.lined", "fsdp", "none"),
    ("composite.apart", "fsdp", "none"),
    ("composite.pooled", "fsdp", "none"),
    *itertools.product(LAID_ANEW, ["megatron", "megatron_sp", "zero2"], ["none"]),
    ("architectures.unet", "fsdp", "none"),
    *itertools.product(["heavy.mixer", "heavy.encoder"], ["zero2", "fsdp"], ["full"]),
    *itertools.product(["heavy.shared", "heavy.tables"], ["zero2", "fsdp"], ["selective", "full"]),
    *itertools.product(["llama", "gpt2"], ["megatron", "megatron_sp"], ["selective"]),
]
QUICK: list[tuple[str, str, Recompute]] = [
    ("heavy.buffered", "fsdp", "none"),
    ("heavy.mixer", "megatron", "none"),
    ("bert", "megatron_sp", "none"),
    ("heavy.shared", "fsdp", "selective"),
    ("llama", "megatron_sp", "selective"),
    ("architectures.mixtral", "zero2", "none"),
]
SLOW: list[tuple[str, str, Recompute]] = [
    ("heavy.shared", "megatron_sp", "none"),
    ("heavy.encoder", "fsdp", "full"),
    ("composite.cells", "ddp", "none"),
    ("composite.attended", "megatron_sp", "none"),
    ("architectures.lstm", "megatron_sp", "none"),
    ("gpt2", "megatron", "selective"),
]
"""Always in the slow run, where a sixth of the others is; `benchmarks/memory.py` has all."""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "keeps",
    [pytest.param(True, id="kept"), pytest.param(False, id="dropped", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize(
    ("name", "preset", "recompute"),
    [
        *daily([case for case in PRESETS if case not in SLOW], QUICK, part=6),
        *daily(SLOW, ()),
    ],
)
def test_a_preset_needs_no_more_than_its_plan_says(
    pool: Pool, name: str, preset: str, recompute: Recompute, keeps: bool
) -> None:
    """Weights that are gathered and gradients that are summed are most of these models."""
    plan, made = peaks.planned(name, 2, recompute, preset)
    e = plan.estimate
    said = e.memory_nbytes if keeps else e.dropping_nbytes
    assert said == pytest.approx(pool.run(2, peaks.peaks, made, keeps)[0].most, rel=NEARER)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "preset", "recompute"),
    daily(
        [
            *itertools.product(
                ["heavy.mixer", "heavy.shared", "bert", "llama"],
                ["fsdp_megatron", "hsdp", "megatron"],
                ["none"],
            ),
            *itertools.product(["heavy.shared"], ["fsdp", "hsdp"], ["selective", "full"]),
        ],
        [],
    ),
)
def test_on_two_axes(pool: Pool, name: str, preset: str, recompute: Recompute) -> None:
    """Weights come in two steps, parts of the batch of parts, and shared weights wait for all blocks."""
    plan, made = peaks.planned(name, (2, 2), recompute, preset)
    found = pool.run(4, peaks.peaks, made)[0]
    assert plan.estimate.memory_nbytes == pytest.approx(found.most, rel=NEARER)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", daily(["heavy.chain", "llama", "architectures.longformer_local"], ["heavy.chain"])
)
def test_gradients_that_are_dropped_are_not_there_yet(pool: Pool, name: str) -> None:
    """On one rank no bucket holds them: the backward makes each anew, if anything reaches it."""
    plan, made = peaks.planned(name, 1)
    e = plan.estimate
    assert e.absent_nbytes is not None and 0 < e.absent_nbytes <= e.gradient_nbytes
    for keeps, said in ((True, e.memory_nbytes), (False, e.dropping_nbytes)):
        found = pool.run(1, peaks.peaks, made, keeps)[0]
        assert said == pytest.approx(found.most, rel=NEAR), keeps


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "share"),
    daily(
        [
            ("heavy.pairs", 0.85),
            ("heavy.mixer", 0.7),
            ("heavy.encoder", 0.85),
            ("heavy.encoder", 0.7),
        ],
        [("heavy.pairs", 0.85), ("heavy.mixer", 0.7)],
    ),
)
def test_a_limit_holds(pool: Pool, name: str, share: float) -> None:
    """Some weights rest split, and of their whole gradients each rank keeps its part alone.

    Attention's limited plans take a minute to find.
    """
    limit = share * peaks.planned(name, 2)[0].estimate.memory_nbytes
    plan, made = peaks.planned(name, 2, limit=limit)
    assert any(parameter.stored.is_split for parameter in plan.parameters)
    assert pool.run(2, peaks.peaks, made)[0].most <= limit


@pytest.mark.thorough
def test_nothing_stays_of_what_is_gathered_between_two_axes(pool: Pool) -> None:
    """A weight that is gathered over one axis, then over the other, leaves the whole alone."""
    plan, made = peaks.planned("heavy.pairs", (2, 2), None, "fsdp")
    found, e = pool.run(4, peaks.peaks, made)[0], plan.estimate
    rest = e.memory_nbytes - e.activation_nbytes - e.working_nbytes
    forward = rest + max(op.forward_nbytes for op in e.operators)
    assert forward == pytest.approx(found.forward, rel=NEAR)


def test_what_only_a_caller_holds_lives_as_long_as_its_variable(pool: Pool) -> None:
    """No loop overwrites a block's result where something is said between the blocks."""
    plan, made = peaks.planned("between", 1)
    assert "for block in" not in made.source
    found = pool.run(1, peaks.peaks, made)[0]
    assert plan.estimate.memory_nbytes == pytest.approx(found.most, rel=NEAR)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ranks"), list(zip(SOME, itertools.cycle([1, 2]), strict=False)))
def test_of_architectures(pool: Pool, name: str, ranks: int) -> None:
    """Every other one, on one rank or two in turn; `benchmarks/memory.py` has all, and the presets."""
    key = f"architectures.{name}"
    modes: tuple[Recompute, ...] = (
        ("selective", "full") if blocks(parity.reference(key).graph) else ()
    )
    for mode in (None, *modes):
        plan, made = peaks.planned(key, ranks, mode)
        found = pool.run(ranks, peaks.peaks, made)[0]
        assert plan.estimate.memory_nbytes == pytest.approx(found.most, rel=NEAR), mode


def test_deleting_frees_what_the_plan_counts_on(pool: Pool) -> None:
    """Without its `del` lines the same module has more in use, and equals the plan no more."""
    plan, made = peaks.planned("gpt2", 1)
    lines = made.source.splitlines(keepends=True)
    kept = [line for line in lines if not line.lstrip().startswith("del ")]
    assert len(lines) - len(kept) >= 3
    held = pool.run(1, peaks.peaks, replace(made, source="".join(kept)))[0].most
    assert held > (1 + NEAR) * plan.estimate.memory_nbytes


def test_the_allocator_knows_what_kernels_take() -> None:
    """A mean squared error takes the mean of squares that no tensor shows."""
    made, wanted = torch.ones(1000), torch.zeros(1000)
    with LiveBytes() as live:
        torch.nn.functional.mse_loss(made, wanted)
    with Allocations(0) as allocated:
        torch.nn.functional.mse_loss(made, wanted)
    assert allocated.most >= live.most + 4000
    assert allocated.nbytes == 0


def test_the_tracker_lets_gradients_add_up_in_place() -> None:
    """Handed to Python, autograd adds out of place; the allocator sees a step as it runs."""

    def step() -> torch.Tensor:
        read = leaf * 2
        return torch.stack([read.exp().sum(), read.cos().sum(), read.sin().sum()]).sum()

    leaf = torch.ones(1000, dtype=torch.float64, requires_grad=True)
    leaf.grad = torch.zeros_like(leaf)
    with LiveBytes() as live:
        loss = step()
        held, live.most = live.nbytes, live.nbytes
        loss.backward()
    loss = step()
    with Allocations(held) as allocated:
        loss.backward()
    assert live.most == pytest.approx(allocated.most, rel=0.01)


def test_the_tracker_sees_what_a_block_adds_when_it_runs_again() -> None:
    """There, too, autograd is at work, but what is added is no gradient."""

    def block(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.cat([x, x]) + torch.cat([x, x]))

    leaf = torch.ones(1000, dtype=torch.float64, requires_grad=True)
    with LiveBytes() as live:
        loss = checkpoint(block, leaf, use_reentrant=False).sum()
        held, live.most = live.nbytes, live.nbytes
        loss.backward()
    assert live.most >= held + 3 * 2 * leaf.nbytes


def test_the_tracker_counts() -> None:
    with LiveBytes() as live:
        kept = torch.ones(1000) + 1
        gone = torch.ones(1000) * 2
        del gone
    assert live.nbytes == kept.untyped_storage().nbytes()
    assert live.most >= 2 * live.nbytes
