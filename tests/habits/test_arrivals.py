"""Models that come wrapped, converted or sharded: trained as one process would, or one sentence."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

import autopar
from autopar.errors import InputError
from tests.daily import rotated
from tests.habits import opaque_jobs as jobs
from tests.pool import Pool


@pytest.mark.parametrize(("name", "preset"), rotated(jobs.ARRIVING, ["ddp", "fsdp"], part=2))
def test_trains_as_one_process(pool: Pool, name: str, preset: str) -> None:
    pool.run(2, partial(jobs.arriving_steps, name, 2, preset=preset))


@pytest.mark.slow
@pytest.mark.parametrize("name", jobs.ARRIVING)
def test_other_layouts(pool: Pool, name: str) -> None:
    pool.run(2, partial(jobs.arriving_steps, name, 2, preset="megatron"))
    pool.run(1, partial(jobs.arriving_steps, name, 1))


@pytest.mark.parametrize("name", jobs.REFUSED)
def test_refused_with_ranks(pool: Pool, name: str) -> None:
    pool.run(2, jobs.refused, name)


def _with(change: Callable[[jobs.Layer], object]) -> nn.Module:
    model = jobs.Three("plain").double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        change(model.layers[1])
    return model


def _parameter(value: torch.Tensor) -> Callable[[jobs.Layer], object]:
    return lambda m: m.register_parameter("odd", nn.Parameter(value, requires_grad=False))


def _mapped() -> nn.Module:
    model = jobs.Three("plain").double()
    model.hf_device_map = {"first": 0, "layers": "cpu"}  # type: ignore[assignment]
    return model


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "state_dict_hook": (
        lambda: _with(lambda m: m.register_state_dict_post_hook(lambda *_: None)),
        "'layers.1' of Three has a state_dict hook.*full_state_dict",
    ),
    "average_of_all_batches": (
        lambda: _with(lambda m: setattr(m, "norm", nn.BatchNorm1d(8, momentum=None))),
        "'layers.1.norm' of Three has momentum=None.*momentum=0.1",
    ),
    "state_dict_pre_hook": (
        lambda: _with(lambda m: m.register_state_dict_pre_hook(lambda *_: None)),
        "has a state_dict hook",
    ),
    "lazy": (
        lambda: _with(lambda m: setattr(m, "up", nn.LazyLinear(16))),
        "'layers.1.up.weight' of Three has no shape yet.*model\\(\\*\\*batch\\)",
    ),
    "traced": (
        lambda: torch.jit.trace(jobs.Three("plain").double(), jobs.batch_of()["x"]),  # type: ignore
        "TorchScript.*nn.Module that it was made of",
    ),
    "sparse": (
        lambda: _with(lambda m: m.register_buffer("odd", torch.eye(3).to_sparse())),
        "buffer 'layers.1.odd' of Three is sparse.*to_dense",
    ),
    "csr": (
        lambda: _with(lambda m: m.register_buffer("odd", torch.eye(3).to_sparse_csr())),
        "buffer 'layers.1.odd' of Three is sparse.*to_dense",
    ),
    "complex": (
        lambda: _with(_parameter(torch.ones(2, dtype=torch.complex64))),
        "'layers.1.odd' of Three is complex.*view_as_real",
    ),
    "quantised": (
        lambda: _with(
            lambda m: m.register_buffer(
                "odd", torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
            )
        ),
        "'layers.1.odd' of Three is quantised.*dequantize",
    ),
    "nested": (
        lambda: _with(
            lambda m: m.register_buffer("odd", torch.nested.nested_tensor([torch.ones(2)]))
        ),
        "'layers.1.odd' of Three is a nested tensor.*to_padded_tensor",
    ),
    "devices": (_mapped, "several devices.*'first' on 0, 'layers' on cpu.*device_map"),
    "half a character": (
        lambda: _with(lambda m: m.add_module("odd\udc80", nn.Linear(2, 2))),
        "The name 'layers.1.odd.udc80' in Three contains an unpaired surrogate.*replace",
    ),
    "half a character in a buffer": (
        lambda: _with(lambda m: m.register_buffer("\ud800", torch.ones(2))),
        "The name 'layers.1..ud800' in Three contains an unpaired surrogate.*replace",
    ),
    "data parallel inside": (
        lambda: _with(lambda m: setattr(m, "up", nn.DataParallel(m.up))),
        "The module 'layers.1.up' of Three is itself wrapped.*module inside",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_anything_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, text = REFUSED[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make()
    monkeypatch.setattr(jobs.Three, "forward", lambda *_: pytest.fail("it ran"))
    for call in (autopar.plan, autopar.parallelize):
        with pytest.raises(InputError) as caught:
            call(model, 2, jobs.batch_of())  # type: ignore[operator]
        assert re.search(text, str(caught.value)), caught.value


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_remedies() -> None:
    """What the refusals advise makes a plan."""
    lazy = _with(lambda m: setattr(m, "up", nn.LazyLinear(16, dtype=torch.float64)))
    lazy(**jobs.batch_of())
    inside = _with(lambda m: setattr(m, "up", nn.DataParallel(m.up)))
    for layer in inside.layers:
        layer.up = getattr(layer.up, "module", layer.up)
    scripted = torch.jit.trace(copy.deepcopy(inside), jobs.batch_of()["x"])
    plain = jobs.Three("plain").double()
    plain.load_state_dict(scripted.state_dict())
    spelled = _with(
        lambda m: m.add_module("odd\udc80".encode(errors="replace").decode(), nn.ReLU())
    )
    for model in (lazy, inside, plain, spelled):
        autopar.plan(model, 2, jobs.batch_of(), hardware="h100", preset="ddp")
    # Transforms have no rule, so `ddp` would split nothing of what follows.
    autopar.plan(ComplexAsReal().double(), 2, jobs.batch_of(), hardware="h100")


class ComplexAsReal(jobs.Three):
    """A complex filter kept as real numbers."""

    def __init__(self) -> None:
        super().__init__("plain")
        self.filter = nn.Parameter(torch.randn(5, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = torch.fft.rfft(x) * torch.view_as_complex(self.filter)
        return super().forward(torch.fft.irfft(seen, n=8))


def test_names_are_those_of_the_model_inside() -> None:
    model = nn.DataParallel(jobs.Three("plain").double())
    made = autopar.plan(model, 2, jobs.batch_of(), hardware="h100", preset="ddp")
    assert set(made.parameter) == {name for name, _ in model.module.named_parameters()}
