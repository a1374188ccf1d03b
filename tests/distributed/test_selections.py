"""Selections by known masks, and losses over alignments: parallel steps equal single-process ones."""

from __future__ import annotations

import copy

import pytest
import torch

import autopar
from autopar.errors import InputError
from tests import parity
from tests.daily import daily
from tests.distributed.test_parity import run
from tests.pool import Pool
from tests.selections import SELECTIONS

DAILY = ("selections.contrast", "selections.spoken")
PLACES = (((2,), "ddp"), ((2,), "fsdp"), ((2,), "megatron"))
WIDER = (((4,), "ddp"), ((2, 2), "fsdp_megatron"), ((2,), None), ((1,), None))


@pytest.mark.thorough
@pytest.mark.parametrize("name", daily(SELECTIONS, DAILY))
def test_on_two_ranks(pool: Pool, name: str) -> None:
    run(pool, [parity.preset_work(name, shape, preset) for shape, preset in PLACES])


@pytest.mark.slow
@pytest.mark.parametrize("name", SELECTIONS)
def test_on_more_meshes(pool: Pool, name: str) -> None:
    run(pool, [parity.preset_work(name, shape, preset) for shape, preset in WIDER])
    run(pool, [parity.random_work(name, (2,), seed) for seed in range(4)])


def test_samples_of_a_ctc_loss_are_split() -> None:
    work = parity.preset_work("selections.spoken", (2,), "ddp")
    plan = autopar.Plan.from_json(work.plan)
    (choice,) = [c for c in plan.choices if "ctc_loss" in c.node]
    assert "S(" in str(choice.sharding), choice


def changed_buffer(preset: str) -> str:
    """More columns than at capture: the step says so, and is right again when they are back."""
    model, batch, _ = SELECTIONS["selections.columns"]()
    parallel = autopar.parallelize(copy.deepcopy(model), (2,), batch, preset=preset)
    before = float(parallel(**batch).detach())
    mask = dict(parallel.named_buffers())["mask"]
    kept = mask.clone()
    mask.fill_(True)
    try:
        parallel(**batch)
    except InputError as error:
        mask.copy_(kept)
        # As many others are selected by their values.
        assert float(parallel(**batch).detach()) == before
        mask.copy_(kept.roll(1))
        with torch.no_grad():
            model.mask.copy_(kept.roll(1))
        assert abs(float(parallel(**batch).detach()) - float(model(**batch).detach())) < 1e-5
        return str(error)
    raise AssertionError("another size was selected")


def test_a_buffer_that_selects_more(pool: Pool) -> None:
    for said in pool.run(2, changed_buffer, "ddp"):
        assert "16 entries, 11 when the model was captured" in said
