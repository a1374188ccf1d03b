"""What the race counts and compares, without running one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (FOLDER, FOLDER / "race"):
        monkeypatch.syspath_prepend(str(folder))


def setting(family: str, *seconds: float, refused: str = "") -> dict[str, Any]:
    return {
        "family": family, "name": "a", "says": "", "error": 1e-7, "predicted_s": None,
        "refused": refused, "tried_s": [1.0], "seconds": list(seconds),
    }  # fmt: skip


def race(network: str = "two", model: str = "gpt2", ours: float = 1.0) -> dict[str, Any]:
    settings = [
        setting("DDP", 2.0, 2.2, 4.0),
        setting("DDP"),
        setting("pipelining", 1.0, 1.1, 2.0),
        setting("tensor", refused="not equal to one process: 1e-01"),
        setting("autopar", *(ours * second for second in (1.0, 1.1, 2.0))),
    ]
    return {"network": network, "model": model, "settings": settings}


def test_ratios_are_of_steps_in_the_same_round() -> None:
    import results

    found = results.summary(race(ours=1.1))
    assert found["best"] == "pipelining" and found["against_best"] == 1.1
    assert found["against_data"] == 0.55
    assert results.summary({"settings": [setting("autopar", 1.0)]}) == {}


def test_all_races_together() -> None:
    import results

    races = [race(), race("four", ours=1.25), race("shared", ours=3.0)]
    found = results.overall(races)
    assert found["races"] == 3 and found["within 5 % of the best"] == 1
    assert found["worst against the best"] == 3.0
    assert found["times as fast as DDP on slow networks"] == pytest.approx(
        (2 * 1.6) ** 0.5, abs=1e-3
    )


def test_who_is_not_equal_is_not_counted_and_the_table_says_so() -> None:
    import results

    head, _, line = results.table([race()]).splitlines()
    assert head.split(" | ")[2:6] == ["DDP", "pipelining", "tensor", "autopar"]
    assert "2200 ±" in line and "not equal to one process" in line and "1.00 (pipelining)" in line
    assert "not counted" in results.settings_of(race())


def test_a_part_that_ran_again_replaces_the_old_one() -> None:
    import results

    before = [race("two"), race("two", "bert"), race("four", "bert")]
    after = results.merged(before, [race("two", "bert", ours=2.0)], ["bert", "gpt2"])
    assert [(each["network"], each["model"]) for each in after] == [
        ("two", "bert"), ("two", "gpt2"), ("four", "bert"),
    ]  # fmt: skip
    assert results.summary(after[0])["against_best"] == 2.0


def test_fused_rows_are_separated_again() -> None:
    from tensor_plans import interleaved, separated

    rows = torch.arange(24).view(12, 2)  # three products of four rows
    mixed = interleaved(rows, 0, 3, 2)
    assert mixed[:6, 0].tolist() == [0, 2, 8, 10, 16, 18]
    assert torch.equal(separated(mixed, 0, 3, 2), rows)


def test_an_update_that_is_missed_is_seen() -> None:
    from equal import Reference, difference

    single = Reference(2.0, {"w": torch.zeros(2)}, {"w": torch.tensor([0.1, 0.2])})
    assert difference(2.0, {"w": torch.tensor([0.1, 0.2])}, single) == 0
    assert difference(2.0, {"w": torch.tensor([0.1, 0.1])}, single) == pytest.approx(0.5)
    assert difference(2.2, {"w": torch.tensor([0.1, 0.2])}, single) == pytest.approx(0.1)
    with pytest.raises(ValueError, match="no weights for w"):
        difference(2.0, {}, single)


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_stages_by_hand_are_the_model(name: str) -> None:
    """Cut in four, tied weights under one name; loss and gradients are those of the model."""
    from dataclasses import replace

    from cuts import CUTS, Stage
    from models import MODELS, TINY

    model, cut = replace(MODELS[name], sizes=TINY), CUTS[name]
    batch = model.batches()[0]
    whole = model.make()
    loss = whole(**batch).loss
    loss.backward()
    stages = [Stage(model.make(), cut, number, 4) for number in range(4)]
    state: Any = (batch[cut.reads],)
    for stage in stages:
        state = stage(*state, **cut.beside(whole, batch))
        state = state if isinstance(state, tuple) else (state,)
    cut.loss(state[0], batch["labels"]).backward()
    gradients: dict[str, torch.Tensor] = {}
    for stage in stages:
        for key, parameter in stage.names().items():
            gradients[key] = gradients.get(key, torch.zeros(())) + parameter.grad
    for key, parameter in whole.named_parameters():
        torch.testing.assert_close(gradients[key], parameter.grad, rtol=1e-4, atol=1e-6)
