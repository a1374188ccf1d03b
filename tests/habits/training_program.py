"""Actions of a training program, carried out on the plain model and on the parallel one.

Both sides run the same code.  `tests.habits.training_run` compares them after every action: results,
gradients, weights, buffers, and the optimizer's state through the weights of the next steps.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from autopar.errors import AutoparError, InputError
from tests.files.saving import failing
from tests.habits import training_model
from tests.habits.training_built import attributes, set_attributes
from tests.habits.training_model import LAYOUTS, SAMPLES, Setting, optimizer

Action = tuple[Any, ...]
"""A name of `ACTIONS` and its arguments."""


@dataclass
class Training:
    """One side: a module with its optimizer, and what a training loop keeps beside them."""

    setting: Setting
    remade: Callable[[], Any]
    """A module in its first state."""
    is_parallel: bool
    folder: Path
    module: Any = None
    optimizer: Any = None
    scheduler: Any = None
    scaler: Any = None
    average: list[torch.Tensor] | None = None
    kept: list[torch.Tensor] = field(default_factory=list)
    saves: int = 0
    saved: dict[int, Any] = field(default_factory=dict)
    """Of the plain side: what each save kept."""

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Everything anew, as in a process that has just started."""
        self.module = self.remade()
        self.optimizer = optimizer(self.setting.optimizer, self.module)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)
        options: dict[str, Any] = {"init_scale": 16.0, "growth_interval": 2}
        if self.is_parallel:
            self.scaler = self.module.grad_scaler(**options)
        else:
            self.scaler = torch.amp.GradScaler("cpu", **options)
        self.average, self.kept = None, []

    @property
    def is_staged(self) -> bool:
        """Whether this side is a pipeline."""
        return self.is_parallel and LAYOUTS[self.setting.layout].is_staged

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """By name."""
        return dict(self.module.named_parameters())

    def data(self, seed: int, samples: int = SAMPLES) -> dict[str, Any]:
        """A global batch."""
        return training_model.batch(self.setting.model, seed, samples)


def loss_of(training: Training, data: dict[str, Any], scaler: Any = None) -> torch.Tensor:
    """Forward and backward; gradients add up."""
    if training.is_staged:
        return training.module.train_step(**data, scaler=scaler)  # type: ignore[no-any-return]
    loss = training.module(**data)
    if loss.requires_grad:
        (loss if scaler is None else scaler.scale(loss)).backward()
    return loss.detach()  # type: ignore[no-any-return]


def step(training: Training, seed: int) -> Any:
    """Zero, forward, backward, update."""
    training.optimizer.zero_grad()
    loss = loss_of(training, training.data(seed))
    training.optimizer.step()
    return loss


def step_of(training: Training, seed: int, samples: int) -> Any:
    """A batch of another shape, as the last of an epoch is."""
    training.optimizer.zero_grad()
    loss = loss_of(training, training.data(seed, samples))
    training.optimizer.step()
    return loss


def accumulate(training: Training, seed: int) -> Any:
    """Two backwards, the first without synchronisation, then an update."""
    training.optimizer.zero_grad()
    waits = training.is_parallel and not training.is_staged
    with training.module.no_sync() if waits else nullcontext():
        first = loss_of(training, training.data(seed))
    second = loss_of(training, training.data(seed + 1))
    training.optimizer.step()
    return first + second


def in_parts(training: Training, seed: int, parts: int) -> Any:
    """A step in microbatches; parts of a batch norm's batch would be another model."""
    training.optimizer.zero_grad()
    if training.is_parallel and not training.is_staged:
        count = 1 if training.setting.model == "batch_norm" else parts
        loss = training.module.train_step(**training.data(seed), microbatches=count)
    else:
        loss = loss_of(training, training.data(seed))
    training.optimizer.step()
    return loss


def scaled_step(training: Training, seed: int, overflows: bool) -> Any:
    """With a loss scaler, which skips the update where a gradient is no number."""
    training.optimizer.zero_grad()
    scaler = training.scaler
    if overflows:
        loss = training.module(**training.data(seed))
        scaler.scale(loss * 1e308).backward()
    else:
        loss = loss_of(training, training.data(seed), scaler)
    scaler.step(training.optimizer)
    scaler.update()
    training.optimizer.zero_grad()
    return torch.stack([loss.detach(), torch.tensor(scaler.get_scale(), dtype=loss.dtype)])


def backward_only(training: Training, seed: int) -> Any:
    """Gradients that add up to those that are there."""
    return loss_of(training, training.data(seed))


def two_forwards(training: Training, seed: int, apart: bool) -> Any:
    """Two losses before any backward: differentiated as a sum, or one after the other, last first."""
    training.optimizer.zero_grad()
    first, second = (training.module(**training.data(s)) for s in (seed, seed + 1))
    for loss in (second, first) if apart else (first + second,):
        loss.backward()
    training.optimizer.step()
    return torch.stack([first.detach(), second.detach()])


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
            loss_of(training, training.data(0))
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


def dropout(training: Training, layer: int, p: float) -> Any:
    """All or nothing, so that there is nothing to draw."""
    training.module.layers[layer].dropout.p = p


def gain(training: Training, layer: int, value: float) -> Any:
    """A number that forward reads."""
    training.module.layers[layer].gain = value


def evaluate(training: Training, seed: int) -> Any:
    """As a validation loop does, and back."""
    was = [(m, m.training) for m in training.module.modules()]
    training.module.eval()
    with torch.no_grad():
        loss = training.module(**training.data(seed))
    for module, training_mode in was:
        module.training = training_mode
    return loss


def forward_only(training: Training, seed: int) -> Any:
    """A loss that nobody differentiates; kept for a while."""
    loss = training.module(**training.data(seed))
    training.kept = [*training.kept[-1:], loss]
    return loss.detach()


def failing_backward(training: Training, seed: int) -> Any:
    """One that raises on every rank behind some gradients; the loop catches it and clears them."""
    data = training.data(seed)
    if training.setting.model == "nested":
        data["x"]["more"] = (torch.zeros_like(data["x"]["more"][0]),)
    else:
        data["w"] = torch.zeros_like(data["w"])
    loss = training.module(**data)
    raised = False
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
    data = training.data(0)
    if training.setting.model == "nested":
        data["x"]["x"] = data["x"]["x"][:, :-1]
    else:
        data["x"] = data["x"][:, :-1]
    try:
        loss_of(training, data)
    except (RuntimeError, AutoparError):
        return torch.tensor(1.0)
    return torch.tensor(0.0)


def clip(training: Training, norm: float) -> Any:
    """Of the gradients that are there."""
    if training.is_parallel:
        return training.module.clip_grad_norm_(norm)
    return nn.utils.clip_grad_norm_(training.module.parameters(), norm)


def average(training: Training) -> Any:
    """Of weights, as a loop over parameters makes it; on each stage of a pipeline its own."""
    parameters = [p.detach() for p in training.parameters.values()]
    if training.average is None:
        training.average = [p.clone() for p in parameters]
    for mean, parameter in zip(training.average, parameters, strict=True):
        mean.lerp_(parameter, 0.25)
    return dict(zip(training.parameters, training.average, strict=True))


def rate(training: Training, factor: float) -> Any:
    """Of learning, set by hand."""
    for group in training.optimizer.param_groups:
        group["lr"] *= factor


def schedule(training: Training) -> Any:
    """One step of the scheduler, perhaps before any of the optimizer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training.scheduler.step()
    return torch.tensor(training.scheduler.get_last_lr())


def full_state(training: Training) -> Any:
    """Whole tensors, inside inference mode, as a logger would take them."""
    with torch.inference_mode():
        if training.is_parallel:
            state = training.module.full_state_dict()
        else:
            state = training.module.state_dict()
        return {name: value.clone() for name, value in sorted(state.items())}


def save(training: Training) -> Any:
    """A checkpoint, under the number of the save."""
    training.saves += 1
    if training.is_parallel:
        training.module.save(
            training.folder / "checkpoint", training.optimizer, training.saves,
            scheduler=training.scheduler, scaler=training.scaler, extra={"save": training.saves},
        )  # fmt: skip
    else:
        training.saved[training.saves] = state_of(training)


def load(training: Training) -> Any:
    """The last checkpoint, into what is there."""
    return torch.tensor(float(_load(training, training.saves)))


def killed_save(training: Training, operation: int) -> Any:
    """All of rank 0's operations on files fail from this one on; new processes load what is there."""
    if not training.saves:
        save(training)
    if not training.is_parallel:
        save(training)
        keep_standing(training, training.begin)
        return None  # which save is there, the parallel side finds out: `loaded`
    with _killed(operation):
        save(training)
    keep_standing(training, training.begin)
    return _load(training, 0)


def loaded(training: Training, number: int) -> None:
    """What a save of that number kept, on the plain side; it is the last on both."""
    training.saves = number
    if not training.is_parallel:
        _load(training, number)


def _load(training: Training, number: int) -> int:
    training.optimizer.zero_grad()
    if not training.is_parallel:
        put_on(training, training.saved[number])
        return number
    extra: dict[str, Any] = {"save": 0}
    found: int = training.module.load(
        training.folder / "checkpoint", training.optimizer,
        scheduler=training.scheduler, scaler=training.scaler, extra=extra,
    )  # fmt: skip
    assert extra["save"] == found
    return found


@contextmanager
def _killed(operation: int) -> Iterator[None]:
    """A save that is cut off raises; of its files stays what was there at that moment."""

    def fail() -> None:
        raise OSError("killed here")

    here = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
    with failing(operation, fail, is_cut=True) if here else nullcontext():
        try:
            yield
        except (AutoparError, OSError) as error:
            assert "killed here" in str(error), error


def state_of(training: Training) -> Any:
    """All that a checkpoint keeps, of the plain side."""
    parts = (training.module, training.optimizer, training.scheduler, training.scaler)
    return copy.deepcopy([part.state_dict() for part in parts])


def put_on(training: Training, states: Any) -> None:
    """What `state_of` gave."""
    parts = (training.module, training.optimizer, training.scheduler, training.scaler)
    for part, state in zip(parts, copy.deepcopy(states), strict=True):
        part.load_state_dict(state)


def standing(training: Training) -> Any:
    """What no checkpoint keeps, and the user's code sets again: flags, modes, attributes."""
    return (
        {name: p.requires_grad for name, p in training.module.named_parameters()},
        {name: m.training for name, m in training.module.named_modules()},
        attributes(training.module),
    )


def stand(training: Training, how: Any) -> None:
    """As `standing` said."""
    flags, modes, values = how
    for name, parameter in training.module.named_parameters():
        parameter.requires_grad_(flags[name])
    for name, module in training.module.named_modules():
        module.training = modes[name]
    set_attributes(training.module, values)


def keep_standing(training: Training, action: Callable[[], None]) -> None:
    """Something that makes the module anew."""
    how = standing(training)
    action()
    stand(training, how)


ACTIONS: dict[str, Callable[..., Any]] = {
    action.__name__: action
    for action in (
        step, step_of, accumulate, in_parts, scaled_step, backward_only, two_forwards, update, clear,
        freeze_and_thaw, mode, mode_of_all, dropout, gain, evaluate, forward_only, failing_backward,
        failing_forward, clip, average, rate, schedule, full_state, save, load, killed_save,
    )
}  # fmt: skip
"""And `resume`, which ends the processes and goes on in another layout (`tests.habits.training_run`)."""
