"""A training program as a list of actions, carried out on the plain model and on the parallel one.

Both sides run the same code. After every action the two are compared: results, gradients, weights,
buffers, and the optimizer's state through the weights of the next steps.
"""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import autopar
from autopar.errors import AutoparError, InputError

SAMPLES, FEATURES, WIDTH, LAYERS = 8, 6, 8, 3
OTHER_SAMPLES = 4
TOLERANCE = 1e-9
Action = tuple[Any, ...]
"""A name of `ACTIONS` and its arguments."""
PARTS = ("first", "norm", "layers.0", "layers.2", "head")
"""Submodules that are frozen or change their mode."""


class Layer(nn.Module):
    """A residual block; it stands three times."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.linear(self.norm(x)).tanh()


class Net(nn.Module):
    """Batch norm, equal layers, and a parameter whose gradient is no number where `w` is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        # Batch norm takes a bias away: its gradient would be rounding noise, which Adam makes large.
        self.first, self.norm = nn.Linear(FEATURES, WIDTH, bias=False), nn.BatchNorm1d(WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.first(x * (self.scale * w).sqrt()))
        for layer in self.layers:
            h = layer(h)
        return self.head(h).square().mean()


@cache
def fresh() -> nn.Module:
    """The model that every program begins with."""
    torch.manual_seed(3)
    return Net().double()


def batch(seed: int, samples: int = SAMPLES) -> dict[str, torch.Tensor]:
    """A global batch."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, FEATURES, generator=generator, dtype=torch.float64)
    return {"x": x, "w": torch.rand(samples, 1, generator=generator, dtype=torch.float64) + 0.5}


@dataclass
class Training:
    """One side: a module with its optimizer, and what a training loop keeps beside them."""

    module: Any
    optimizer: torch.optim.Optimizer
    remade: Callable[[], Any]
    """The module once more, from its first weights, perhaps laid out otherwise."""
    is_parallel: bool
    folder: Path
    average: list[torch.Tensor] | None = None
    kept: list[torch.Tensor] = field(default_factory=list)

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """By name."""
        return dict(self.module.named_parameters())


def made(module: Any, remade: Callable[[], Any], is_parallel: bool, folder: Path) -> Training:
    """A side at the beginning of its program."""
    return Training(module, _optimizer(module), remade, is_parallel, folder)


def _optimizer(module: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=1e-2, weight_decay=0.1)


def step(training: Training, seed: int) -> Any:
    """Zero, forward, backward, update."""
    training.optimizer.zero_grad()
    loss = training.module(**batch(seed))
    if loss.requires_grad:
        loss.backward()
        training.optimizer.step()
    return loss.detach()


def smaller_step(training: Training, seed: int) -> Any:
    """A batch of another shape, as the last of an epoch is."""
    training.optimizer.zero_grad()
    loss = training.module(**batch(seed, OTHER_SAMPLES))
    if loss.requires_grad:
        loss.backward()
        training.optimizer.step()
    return loss.detach()


def accumulate(training: Training, seed: int) -> Any:
    """Two backwards, the first without synchronisation, then an update."""
    training.optimizer.zero_grad()
    with training.module.no_sync() if training.is_parallel else nullcontext():
        first = training.module(**batch(seed))
        if first.requires_grad:
            first.backward()
    second = training.module(**batch(seed + 1))
    if second.requires_grad:
        second.backward()
        training.optimizer.step()
    return first.detach() + second.detach()


def backward_only(training: Training, seed: int) -> Any:
    """Gradients that add up to those that are there."""
    loss = training.module(**batch(seed))
    if loss.requires_grad:
        loss.backward()
    return loss.detach()


def update(training: Training) -> Any:
    """Whatever gradients are there."""
    training.optimizer.step()


def clear(training: Training, to_none: bool) -> Any:
    """Of gradients."""
    training.optimizer.zero_grad(set_to_none=to_none)


def freeze_and_thaw(training: Training, part: str) -> Any:
    """The parallel model refuses the step that it was not planned for, and nothing is lost."""
    parameters = list(training.module.get_submodule(part).parameters())
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        if training.is_parallel:
            training.module(**batch(0))
            raise AssertionError("a step with other trained parameters was not refused")
    except InputError as error:
        assert "no longer requires gradients" in str(error)
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


def mode(training: Training, part: str, train: bool) -> Any:
    """Of a submodule."""
    training.module.get_submodule(part).train(train)


def mode_of_all(training: Training, train: bool) -> Any:
    """Of the whole module."""
    training.module.train(train)


def evaluate(training: Training, seed: int) -> Any:
    """As a validation loop does, and back."""
    was = [(m, m.training) for m in training.module.modules()]
    training.module.eval()
    with torch.no_grad():
        loss = training.module(**batch(seed))
    for module, training_mode in was:
        module.training = training_mode
    return loss


def forward_only(training: Training, seed: int) -> Any:
    """A loss that nobody differentiates; kept for a while."""
    loss = training.module(**batch(seed))
    training.kept = [*training.kept[-1:], loss]
    return loss.detach()


def failing_backward(training: Training, seed: int) -> Any:
    """One that raises on every rank behind some gradients; the loop catches it and clears them."""
    data = batch(seed)
    data["w"] = torch.zeros_like(data["w"])
    loss = training.module(**data)
    raised = False
    if loss.requires_grad:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                with torch.autograd.set_detect_anomaly(True, check_nan=True):
                    loss.backward()
            except RuntimeError:
                raised = True
    training.module.zero_grad()
    return torch.tensor(float(raised))


def failing_forward(training: Training) -> Any:
    """Samples with too few features."""
    data = batch(0)
    data["x"] = data["x"][:, :-1]
    try:
        training.module(**data)
    except (RuntimeError, AutoparError):
        return torch.tensor(1.0)
    return torch.tensor(0.0)


def clip(training: Training, norm: float) -> Any:
    """Of the gradients that are there."""
    if all(p.grad is None for p in training.module.parameters()):
        return None
    if training.is_parallel:
        return training.module.clip_grad_norm_(norm)
    return nn.utils.clip_grad_norm_(training.module.parameters(), norm)


def average(training: Training) -> Any:
    """Of weights, as a loop over parameters makes it."""
    parameters = [p.detach() for p in training.module.parameters()]
    if training.average is None:
        training.average = [p.clone() for p in parameters]
    for mean, parameter in zip(training.average, parameters, strict=True):
        mean.lerp_(parameter, 0.25)
    return torch.stack([_whole(mean).sum() for mean in training.average])


def rate(training: Training, factor: float) -> Any:
    """Of learning, as a scheduler sets it."""
    for group in training.optimizer.param_groups:
        group["lr"] *= factor


def full_state(training: Training) -> Any:
    """Whole tensors, inside inference mode, as a logger would take them."""
    with torch.inference_mode():
        if training.is_parallel:
            state = training.module.full_state_dict()
        else:
            state = training.module.state_dict()
        return torch.stack([v.double().sum() for _, v in sorted(state.items())])


def save_and_load(training: Training, updates: int) -> Any:
    """A checkpoint, some steps that are lost, and back."""
    if not training.is_parallel:
        states = copy.deepcopy([training.module.state_dict(), training.optimizer.state_dict()])
    else:
        training.module.save(training.folder / "checkpoint", training.optimizer)
    for seed in range(updates):
        step(training, 100 + seed)
    if training.is_parallel:
        training.module.load(training.folder / "checkpoint", training.optimizer)
    else:
        training.module.load_state_dict(states[0])
        training.optimizer.load_state_dict(states[1])
    training.optimizer.zero_grad()


def resume(training: Training) -> Any:
    """A new process: save, make everything anew (in another layout), load."""
    flags = {name: p.requires_grad for name, p in training.module.named_parameters()}
    modes = {name: m.training for name, m in training.module.named_modules()}
    old = training.module
    if training.is_parallel:
        old.save(training.folder / "resumed", training.optimizer)
    states = training.optimizer.state_dict()
    rates = [group["lr"] for group in training.optimizer.param_groups]
    training.module = training.remade()
    training.optimizer, training.kept, training.average = _optimizer(training.module), [], None
    for name, parameter in training.module.named_parameters():
        parameter.requires_grad_(flags[name])
    for name, module in training.module.named_modules():
        module.training = modes[name]
    if training.is_parallel:
        training.module.load(training.folder / "resumed", training.optimizer)
    else:
        training.module.load_state_dict(old.state_dict())
        training.optimizer.load_state_dict(states)
    return torch.tensor(rates) - torch.tensor([g["lr"] for g in training.optimizer.param_groups])


ACTIONS: dict[str, Callable[..., Any]] = {
    action.__name__: action
    for action in (
        step, smaller_step, accumulate, backward_only, update, clear, freeze_and_thaw, mode, mode_of_all,
        evaluate, forward_only, failing_backward, failing_forward, clip, average, rate, full_state,
        save_and_load, resume,
    )
}  # fmt: skip


def _whole(tensor: Any) -> torch.Tensor:
    whole: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole


@contextmanager
def _folder() -> Iterator[Path]:
    """One folder for all ranks."""
    with tempfile.TemporaryDirectory() as mine:
        names: list[Any] = [mine]
        dist.broadcast_object_list(names, src=0)
        yield Path(names[0])
        dist.barrier()


def run(programs: list[tuple[list[Action], str | None, str | None]]) -> None:
    """Programs, each under a preset, resumed under another; raises where the two sides differ."""
    for actions, preset, other in programs:
        try:
            _run_one(actions, preset, other)
        except Exception as error:
            error.add_note(f"preset {preset}, resumed under {other}: {actions}")
            raise


def _parallelized(preset: str | None) -> Any:
    ranks = dist.get_world_size()
    return autopar.parallelize(copy.deepcopy(fresh()), ranks, batch(0), preset=preset)


def _run_one(actions: list[Action], preset: str | None, other: str | None) -> None:
    with _folder() as folder:
        plain = made(copy.deepcopy(fresh()), lambda: copy.deepcopy(fresh()), False, folder)
        parallel = made(_parallelized(preset), lambda: _parallelized(other), True, folder)
        for place, (name, *arguments) in enumerate(actions):
            try:
                want = ACTIONS[name](plain, *arguments)
                got = ACTIONS[name](parallel, *arguments)
                _compare(got, want, "result")
                _compare_sides(parallel, plain)
            except Exception as error:
                error.add_note(f"action {place}: {name}{tuple(arguments)}")
                raise


def _compare_sides(parallel: Training, plain: Training) -> None:
    for name, want in plain.parameters.items():
        got = parallel.parameters[name]
        assert got.requires_grad == want.requires_grad, name
        _compare(got, want, f"weight {name}")
        _compare(got.grad, want.grad, f"gradient of {name}")
    buffers = dict(parallel.module.named_buffers())
    for name, want in plain.module.named_buffers():
        _compare(buffers[name], want, f"buffer {name}")


@torch.no_grad()
def _compare(got: Any, want: Any, what: str) -> None:
    assert (got is None) == (want is None), f"{what}: {got} beside {want} of one process"
    if want is None:
        return
    whole = _whole(got).double()
    scale = max(1.0, float(want.double().abs().max()))
    difference = float((whole - want.double()).abs().max())
    assert difference <= TOLERANCE * scale, f"{what}: {difference:.1e} beside {scale:.1e}"
