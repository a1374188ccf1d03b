"""Weights come from initialisers, files and state dicts shard by shard, and go back whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, load_model, save_file
from torch import nn

from tests import models
from tests.daily import daily
from tests.distributed import weight_jobs as jobs
from tests.pool import Pool

PLANS: list[tuple[tuple[int, ...], str | None]] = [((2, 2), "fsdp_megatron"), ((2, 2), None)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "preset"),
    daily(
        [
            ("gpt2", "fsdp_megatron"), ("llama", "fsdp"), ("bert", None), ("t5", "zero2"),
            ("attending", "fsdp"), ("cnn", "ddp"),
        ],
        [("attending", "fsdp")],
    ),
)  # fmt: skip
def test_meta_models_are_initialised_as_in_one_process(
    pool: Pool, name: str, preset: str | None
) -> None:
    pool.run(4, jobs.initialised, name, (2, 2), preset, None)


def test_a_users_initialiser(pool: Pool) -> None:
    pool.run(2, jobs.initialised, "mlp", (2,), "fsdp", jobs.uniform)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    daily(["gpt2", "cnn", "t5", "albert", "llama"], ["gpt2"]),
)
def test_save_and_read_safetensors(pool: Pool, tmp_path: Path, name: str) -> None:
    """One file and several; every other plan reads them, and so does plain PyTorch."""
    alone, folder = tmp_path / "alone.safetensors", tmp_path / "folder"
    pool.run(4, jobs.written, name, (2, 2), "fsdp_megatron", str(alone), 1e9)
    pool.run(4, jobs.written, name, (2, 2), "fsdp", str(folder), 20e3)
    assert (len(list(folder.glob("*.safetensors"))) > 1) == (name != "cnn")
    pool.run(4, jobs.read, name, (2, 2), None, str(folder))
    pool.run(2, jobs.read, name, (2,), "megatron" if name != "cnn" else "zero2", str(alone), "cpu")
    single, plain = jobs.CASES[name]()[0], jobs.CASES[name]()[0]
    for parameter in plain.parameters():
        nn.init.zeros_(parameter)
    load_model(plain, alone)
    for key, value in single.state_dict().items():
        assert torch.equal(plain.state_dict()[key], value), key


@pytest.mark.slow
def test_transformers_reads_what_was_saved_and_the_other_way(pool: Pool, tmp_path: Path) -> None:
    model = models.gpt2()[0]
    ours, theirs, bare = tmp_path / "ours", tmp_path / "theirs", tmp_path / "bare"
    pool.run(2, jobs.written, "gpt2", (2,), "megatron", str(ours), 50e3)
    model.config.save_pretrained(ours)
    again = type(model).from_pretrained(ours)
    for key, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[key], value), key
    assert again.lm_head.weight is again.transformer.wte.weight
    model.save_pretrained(theirs, max_shard_size="50KB")
    pool.run(2, jobs.read, "gpt2", (2,), "megatron", str(theirs))
    model.transformer.save_pretrained(bare)
    assert "wte.weight" in load_file(bare / "model.safetensors")
    pool.run(2, jobs.read, "gpt2", (2,), "fsdp", str(bare))


@pytest.mark.slow
def test_read_a_checkpoint_directory(pool: Pool, tmp_path: Path) -> None:
    """Strided layouts on both sides: megatron splits fused qkv in blocks."""
    pool.run(4, jobs.checkpointed, "gpt2", (2, 2), "fsdp_megatron", str(tmp_path / "step"))
    pool.run(2, jobs.read, "gpt2", (2,), "megatron", str(tmp_path / "step"))
    pool.run(4, jobs.read, "gpt2", (2, 2), "fsdp", str(tmp_path / "step"))
    pool.run(2, jobs.anybodys, "gpt2", str(tmp_path / "plain"))
    pool.run(2, jobs.read, "gpt2", (2,), "megatron", str(tmp_path / "plain"))


@pytest.mark.thorough
@pytest.mark.parametrize(("mesh", "preset"), PLANS)
@pytest.mark.parametrize(
    "name",
    daily(["gpt2", "albert", "cnn", "t5", "bert"], ["gpt2"]),
)
def test_a_state_dict_loads_and_goes_back(
    pool: Pool, name: str, mesh: tuple[int, ...], preset: str | None
) -> None:
    pool.run(4, jobs.loaded, name, mesh, preset)


@pytest.mark.thorough
def test_a_state_dict_that_does_not_fit(pool: Pool) -> None:
    for messages in pool.run(2, jobs.load_errors, (2,)):
        missing, extra, shape, untied, assign, from_weights, to_parallelize = messages
        assert "has no 'transformer.h.1.mlp.c_fc.bias'" in missing
        assert "'extra.weight', which the model lacks" in extra
        assert "'transformer.h.1.mlp.c_fc.bias' is [127], the model's [128]" in shape
        assert "'lm_head.weight', which the model ties" in untied
        assert "assign=True" in assign
        # Only load_state_dict takes strict=, only parallelize takes init=.
        assert "strict=False" in missing and "strict=False" in extra and "init=" not in missing
        assert "add the missing ones." in from_weights and "strict" not in from_weights
        assert "drop the extra ones." in to_parallelize and "strict" not in to_parallelize


def test_initialisers_that_cannot_be_run(pool: Pool, tmp_path: Path) -> None:
    path = tmp_path / "linear.safetensors"
    torch.manual_seed(jobs.SEED)
    save_file({f"linear.{k}": v.detach() for k, v in nn.Linear(8, 8).state_dict().items()}, path)
    for bare, deep, useless, lacking in pool.run(2, jobs.init_errors, (2,), str(path)):
        assert "'scale' (shape [8])" in bare and "of a Bare" in bare and "init=" in bare
        assert "would hold the whole model" in deep and "Deep" in deep
        assert "Weights(init=...) has nothing to initialise" in useless
        assert "has no 'scale'" in lacking and "init=" in lacking and "strict" not in lacking
    pool.run(2, jobs.adapters_on_loaded, (2,), str(path))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads Linux's peak memory")
@pytest.mark.parametrize("reads", daily([False, True], [False]))
def test_no_process_holds_the_whole_model(pool: Pool, tmp_path: Path, reads: bool) -> None:
    """256 MiB on four ranks: each rank's memory grows by its shards and a few parameters."""
    layers = 64
    for count in (2, layers) if reads else ():
        save_file(jobs.Stack(count).state_dict(), tmp_path / f"{count}.safetensors")
    path = str(tmp_path) if reads else None
    for shards, parameter, grown in pool.run(4, jobs.peak, (4,), layers, path):
        assert shards == layers * parameter // 4
        assert shards / 2 <= grown <= shards + 8 * parameter, (shards, parameter, grown)
