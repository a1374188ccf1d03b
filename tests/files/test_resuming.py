"""What does not fit a checkpoint is named before anything is changed."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autopar.errors import CheckpointError
from autopar.runtime import checkpoint
from autopar.runtime.weights.source import opened


class Model(nn.Module):
    def __init__(self, *, wide: int = 4, more: bool = False, lacks: bool = False) -> None:
        super().__init__()
        self.up = nn.Linear(4, wide)
        self.down = nn.Linear(wide, 4, bias=not lacks)
        if more:
            self.head = nn.Linear(4, 2)


def groups(model: Model, *names: str) -> list[dict[str, Any]]:
    parts = dict(model.named_children())
    return [{"params": list(parts[name].parameters()), "lr": 0.1} for name in names]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Written with two groups of AdamW, one step."""
    model = Model()
    optimizer = torch.optim.AdamW(groups(model, "up", "down"))
    model.up(torch.ones(4)).sum().backward()
    optimizer.step()
    checkpoint.save(tmp_path / "c", model, optimizer, 1, extra={"epoch": 3})
    return tmp_path / "c"


def adamw(model: Model) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups(model, "up", "down"))


MISFITS: dict[str, tuple[Callable[[], Model], Callable[[Model], Any], str]] = {
    "fewer groups": (
        Model,
        lambda m: torch.optim.AdamW(m.parameters()),
        "has 2 parameter groups, and this optimizer 1",
    ),
    "other groups": (
        Model,
        lambda m: torch.optim.AdamW(groups(m, "down", "up")),
        r"is in group \d, and in group \d of this",
    ),
    "part": (
        Model,
        lambda m: torch.optim.AdamW(groups(m, "up")),
        "has the state of 'down.bias', 'down.weight', which this optimizer lacks",
    ),
    "kind": (
        Model,
        lambda m: torch.optim.SGD(groups(m, "up", "down")),
        "written with AdamW, and this optimizer is SGD",
    ),
    "shape": (lambda: Model(wide=5), adamw, r"'up.weight' is \[4, 4\], the model's \[5, 4\]"),
    "dtype": (lambda: Model().double(), adamw, "is torch.float32, the model's torch.float64"),
    "more": (lambda: Model(more=True), adamw, "it has no 'head.weight'"),
    "fewer": (lambda: Model(lacks=True), adamw, "it has 'down.bias', which the model lacks"),
    "a stranger's": (Model, lambda _: adamw(Model()), "is not this model's"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISFITS)
def test_what_differs_is_named_and_nothing_changed(name: str, path: Path) -> None:
    make, optimizer_of, message = MISFITS[name]
    model = make()
    optimizer = optimizer_of(model)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    settings = str(optimizer.state_dict())
    with pytest.raises(CheckpointError, match=message):
        checkpoint.load(path, model, optimizer)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert str(optimizer.state_dict()) == settings


def test_parameters_without_state_stay_so(path: Path) -> None:
    model = Model()
    optimizer = adamw(model)
    assert checkpoint.load(path, model, optimizer) == 1
    assert {p for p in optimizer.state} == {model.up.weight, model.up.bias}


def test_what_was_not_saved_is_named(path: Path) -> None:
    model = Model()
    optimizer = adamw(model)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    with pytest.raises(
        CheckpointError, match=r"has no scheduler: it was saved with extra\['epoch'\]"
    ):
        checkpoint.load(path, model, optimizer, scheduler=scheduler)


def test_a_part_that_refuses_its_state_undoes_all(path: Path, tmp_path: Path) -> None:
    class Refusing:
        def state_dict(self) -> dict[str, Any]:
            return {"a": 1}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            if state:
                raise KeyError("b")

    model = Model()
    checkpoint.save(tmp_path / "r", model, extra={"epoch": 1, "odd": Refusing()})
    extra = {"epoch": 0, "odd": Refusing()}
    Refusing.state_dict = lambda self: {}  # type: ignore[method-assign]
    with pytest.raises(CheckpointError, match="nothing was changed"):
        checkpoint.load(tmp_path / "r", model, extra=extra)
    assert extra["epoch"] == 0


@pytest.mark.parametrize("value", [object(), lambda: 0, nn.Linear(1, 1).parameters, b"x".find])
def test_what_is_no_data_is_refused(value: Any, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"\['deep'\]\[1\] is .*cannot hold"):
        checkpoint.save(tmp_path / "c", Model(), extra={"deep": [0, value]})
    assert not (tmp_path / "c" / ".metadata").exists()


def test_data_of_all_kinds_comes_back(tmp_path: Path) -> None:
    from collections import Counter, OrderedDict

    import numpy as np

    kinds = {
        "text": 'a "\\\n\ud800', "inf": float("inf"), "tuple": (1, (2.5, None)), "set": {3},
        1: True, (1, 2): b"\0\xff", "counter": Counter("aab"), "ordered": OrderedDict(b=1, a=2),
        "dtype": torch.bfloat16, "complex": 1 + 2j, "big": 10**40, "empty": torch.empty(0, 3),
        "array": np.arange(6.0).reshape(2, 3), "half": torch.ones(2, 2, dtype=torch.bfloat16),
        "scalar": torch.tensor(7), "bool": torch.tensor([True, False]),
    }  # fmt: skip
    checkpoint.save(tmp_path / "c", Model(), extra={"kinds": kinds})
    extra: dict[str, Any] = {"kinds": None}
    checkpoint.load(tmp_path / "c", Model(), extra=extra)
    found = extra["kinds"]
    assert list(found) == list(kinds) and type(found["counter"]) is Counter
    for key, value in kinds.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(found[key], value) and found[key].dtype == value.dtype
        else:
            assert np.array_equal(found[key], value) if key == "array" else found[key] == value


class Runs:
    """Unpickled, it makes a file."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.made,)


def test_metadata_is_read_as_data(path: Path, tmp_path: Path) -> None:
    made = tmp_path / "ran"
    for folder in (path, tmp_path / "plain"):
        folder.mkdir(exist_ok=True)
        (folder / ".metadata").write_bytes(pickle.dumps(Runs(made)))
        with pytest.raises(CheckpointError):
            checkpoint.load(folder, Model())
        with pytest.raises(CheckpointError):
            opened(folder)
    assert not made.exists()


def test_values_that_are_no_tensors_are_read_as_data(tmp_path: Path) -> None:
    from torch.distributed.checkpoint import FileSystemWriter, state_dict_saver

    model, made = Model(), tmp_path / "ran"
    optimizer = adamw(model)
    state = checkpoint._plain_state(model, optimizer, 1)
    state["optimizer"]["param_groups.up.weight.lr"] = Runs(made)
    with checkpoint._alone_is_fine():
        state_dict_saver.save(state, storage_writer=FileSystemWriter(tmp_path / "c"), no_dist=True)
    with pytest.raises(CheckpointError):
        checkpoint.load(tmp_path / "c", model, optimizer)
    assert not made.exists()


def test_metadata_names_no_files_outside(path: Path, tmp_path: Path) -> None:
    for strange in ("../c/x", "/etc/passwd"):
        content = pickle.loads((path / ".metadata").read_bytes())
        for entry in content.storage_data.values():
            entry.relative_path = strange
        (tmp_path / "o").mkdir(exist_ok=True)
        (tmp_path / "o" / ".metadata").write_bytes(pickle.dumps(content))
        with pytest.raises(CheckpointError, match="a file outside of it"):
            checkpoint.load(tmp_path / "o", Model())
