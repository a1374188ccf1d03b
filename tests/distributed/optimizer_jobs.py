"""Runs in pool workers: optimizers that need more of a gradient than a rank's part of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.distributed.tensor import DTensor

import autopar
from autopar.errors import InputError, RankMismatchError
from autopar.runtime import checkpoint
from tests.distributed.jobs import same_weights

LIMIT = 1e-9
STEPS = 4


class Layers(nn.Module):
    """Three layers, of sizes that two ranks do and do not divide; one bias is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 12), nn.Linear(12, 27), nn.Linear(27, 7)])
        self.layers[1].bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.square().mean()


class Own(optim.Optimizer):
    """A loop over parameters with gradients, as users write it."""

    def __init__(self, parameters: Iterable[Any], lr: float = 0.05) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(group["lr"] * self.direction(p, self.state[p]))
        return loss

    def direction(self, p: Any, state: dict[str, Any]) -> torch.Tensor:
        raise NotImplementedError


class Lars(Own):
    """The norm of the weight over that of its gradient."""

    def direction(self, p: Any, state: dict[str, Any]) -> torch.Tensor:
        momentum = state.setdefault("momentum", torch.zeros_like(p))
        momentum.lerp_(p.grad / p.grad.norm().clamp(min=1e-12), 0.3)
        return p.norm() * momentum


class Lamb(Own):
    """Adam with a trust ratio, and a step count that is a Python number."""

    def direction(self, p: Any, state: dict[str, Any]) -> torch.Tensor:
        if not state:
            state.update(step=0, mean=torch.zeros_like(p), square=torch.zeros_like(p))
        state["step"] += 1
        state["mean"].lerp_(p.grad, 0.1)
        state["square"].mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)
        update = state["mean"] / (state["square"].sqrt() + 1e-6) / state["step"]
        return update * (p.norm() / update.norm().clamp(min=1e-12)).clamp(max=10.0)


class Shampoo(Own):
    """Kronecker factors of the gradient: square states of other shapes, in a list."""

    def direction(self, p: Any, state: dict[str, Any]) -> torch.Tensor:
        matrix = p.grad.reshape(p.shape[0], -1)
        sizes = matrix.shape
        factors = state.setdefault("factors", [1e-3 * torch.eye(n).to(p) for n in sizes])
        factors[0].add_(matrix @ matrix.T)
        factors[1].add_(matrix.T @ matrix)
        left, right = (self.root(factor) for factor in factors)
        return (left @ matrix @ right).reshape(p.shape)

    @staticmethod
    def root(matrix: torch.Tensor) -> torch.Tensor:
        values, vectors = torch.linalg.eigh(matrix)
        return vectors @ torch.diag(values.clamp(min=1e-12) ** -0.25) @ vectors.T


class Normalised(Own):
    """Divides by the norm of the whole gradient."""

    norm: torch.Tensor

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        with torch.enable_grad():
            loss = None if closure is None else closure()
        every = [p.grad for g in self.param_groups for p in g["params"] if p.grad is not None]
        self.norm = sum(gradient.square().sum() for gradient in every) ** 0.5
        super().step()
        return loss

    def direction(self, p: Any, state: dict[str, Any]) -> torch.Tensor:
        return p.grad / self.norm


class Counted(Normalised):
    """Draws noise for each gradient, and counts its steps in an attribute."""

    count = 0

    def direction(self, p: Any, state: dict[str, Any]) -> torch.Tensor:
        self.count += 1
        return super().direction(p, state) + torch.randn_like(p) / self.count


class Outside(Lars):
    """Writes to a parameter of the model, not of its groups."""

    written: Any = None

    def direction(self, p: Any, state: dict[str, Any]) -> torch.Tensor:
        if self.written is not None:
            self.written().mul_(0.5)
        return super().direction(p, state)


class Derived(optim.Muon):
    """Changes gradients before torch's own step, and keeps one of them."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = p.grad / p.grad.norm()
        return super().step(closure)


class Lookahead(optim.Optimizer):
    """Goes half the way of another optimizer, which has the same groups."""

    def __init__(self, inner: optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        parameters = [p for group in self.param_groups for p in group["params"]]
        before = [p.detach().clone() for p in parameters]
        result = self.inner.step(closure)
        for p, old in zip(parameters, before, strict=True):
            p.lerp_(old, 0.5)
        return result


class Lion(Own):
    """An elementwise one that nobody knows."""

    def direction(self, p: Any, state: dict[str, Any]) -> torch.Tensor:
        momentum = state.setdefault("momentum", torch.zeros_like(p))
        momentum.lerp_(p.grad, 0.1)
        return (momentum + 0.1 * p.grad).sign() * 0.1


def muon(parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
    return optim.Muon([p for p in parameters if p.ndim == 2], lr=0.02)


def adafactor(parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
    return optim.Adafactor(parameters, lr=0.02)


def of_transformers(parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
    from transformers.optimization import Adafactor

    return Adafactor(parameters, beta1=0.9)


def lbfgs(parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
    return optim.LBFGS([p for p in parameters if p.requires_grad], lr=0.1, max_iter=3)


def in_groups(parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
    several = list(parameters)
    matrices = [p for p in several if p.ndim == 2]
    others = [p for p in several if p.ndim != 2]
    groups = [{"params": matrices, "lr": 0.01}, {"params": others, "lr": 0.1}]
    return Lars([group for group in groups if group["params"]])


OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "muon": muon, "adafactor": adafactor, "adafactor of transformers": of_transformers,
    "lars": Lars, "groups": in_groups, "lamb": Lamb, "lion": Lion,
    "shampoo": lambda ps: Shampoo([p for p in ps if p.ndim == 2]),
    "normalised": Normalised, "noise": Counted,
    "derived": lambda ps: Derived([p for p in ps if p.ndim == 2], lr=0.02),
    "lookahead": lambda ps: Lookahead(adafactor([p for p in ps if p.requires_grad])),
}  # fmt: skip
WHOLE_MODEL = ("normalised", "noise")
"""Optimizers that stages refuse."""
KEPT = [name for name in OPTIMIZERS if name not in ("noise", "lookahead")]
"""Optimizers whose state dict is all that they keep."""


def batch(number: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return {"x": torch.randn(8, 8, generator=generator, dtype=torch.float64)}


def trained(model: Any, optimizer: Any, first: int, last: int) -> None:
    """Steps on the batches of these numbers."""
    has_rate = optimizer.param_groups[0]["lr"] is not None
    schedule = optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0) if has_rate else None
    for number in range(first, last):
        torch.manual_seed(number)
        if isinstance(model, autopar.runtime.checkpointable.CheckpointableModule):
            model.train_step(**batch(number))
        else:
            model(**batch(number)).backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
        optimizer.zero_grad()


def models(mesh: Any, options: dict[str, Any]) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    single = Layers().double()
    made = autopar.parallelize(copy.deepcopy(single), mesh, batch(0), hardware="cpu", **options)
    return single, made


def equal(name: str, mesh: Any, options: dict[str, Any]) -> int:
    """Steps are those of one process; the number of sharded parameters."""
    single, parallel = models(mesh, options)
    trained(single, OPTIMIZERS[name](single.parameters()), 0, STEPS)
    optimizer = OPTIMIZERS[name](parallel.parameters())
    trained(parallel, optimizer, 0, STEPS)
    same_weights(parallel, single, LIMIT)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if isinstance(parameter, DTensor):
                check_states(parameter, optimizer.state.get(parameter, {}))
    return sum(any(k.is_shard() for k in p.placements) for p in parallel.parameters() if p.numel())


def uneven(mesh: Any, options: dict[str, Any]) -> bool:
    """Whether a parameter rests in parts of different sizes."""
    _, parallel = models(mesh, options)
    found = [p for p in parallel.parameters() if isinstance(p, DTensor)]
    return any(p.shape[k.dim] % mesh for p in found for k in p.placements if k.is_shard())


def check_states(parameter: DTensor, state: Any) -> None:
    """States of its shape are laid out like a parameter, and others whole, all as DTensors."""
    for value in state.values() if isinstance(state, dict) else state:
        if isinstance(value, (dict, list)):
            check_states(parameter, value)
        elif isinstance(value, torch.Tensor) and value.dim():
            assert isinstance(value, DTensor)
            follows = value.shape == parameter.shape
            assert not follows or value.placements == parameter.placements
            assert follows or value.to_local().shape == value.shape


def save(name: str, folder: str, mesh: Any, options: dict[str, Any]) -> None:
    """Half of the steps, and a checkpoint; on one process too, if there is no mesh."""
    _, parallel = models(mesh, options)
    optimizer = OPTIMIZERS[name](parallel.parameters())
    trained(parallel, optimizer, 0, STEPS // 2)
    parallel.save(f"{folder}/c", optimizer, STEPS // 2)


def resume(name: str, folder: str, mesh: Any, options: dict[str, Any]) -> None:
    """The other half, on another mesh; and in one process without autopar's module."""
    single, parallel = models(mesh, options)
    plain = copy.deepcopy(single)
    trained(single, OPTIMIZERS[name](single.parameters()), 0, STEPS)
    optimizer = OPTIMIZERS[name](parallel.parameters())
    assert parallel.load(f"{folder}/c", optimizer) == STEPS // 2
    trained(parallel, optimizer, STEPS // 2, STEPS)
    same_weights(parallel, single, LIMIT)
    alone = OPTIMIZERS[name](plain.parameters())
    assert checkpoint.load(f"{folder}/c", plain, alone) == STEPS // 2
    trained(plain, alone, STEPS // 2, STEPS)
    for key, value in plain.state_dict().items():
        assert torch.allclose(value, single.state_dict()[key], rtol=0, atol=LIMIT), key


def whole_states(name: str, mesh: Any, options: dict[str, Any]) -> None:
    """A state dict of one process is loaded as it is, before the first step."""
    single, parallel = models(mesh, options)
    alone = OPTIMIZERS[name](single.parameters())
    trained(single, alone, 0, 2)
    parallel.load_state_dict(single.state_dict())
    optimizer = OPTIMIZERS[name](parallel.parameters())
    optimizer.load_state_dict(copy.deepcopy(alone.state_dict()))
    trained(single, alone, 2, STEPS)
    trained(parallel, optimizer, 2, STEPS)
    same_weights(parallel, single, LIMIT)


def closures(name: str, mesh: Any, options: dict[str, Any]) -> None:
    """A closure is called within the step, and computes with the weights of that time."""
    single, parallel = models(mesh, options)
    losses = []
    for model in (single, parallel):
        optimizer = (lbfgs if name == "lbfgs" else OPTIMIZERS[name])(model.parameters())

        def closure(model: Any = model, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            loss = model(**batch(0))
            loss.backward()
            return loss.detach()

        losses.append([float(optimizer.step(closure)) for _ in range(STEPS)])
    same_weights(parallel, single, LIMIT)
    assert all(abs(a - b) < LIMIT for a, b in zip(*losses, strict=True)), losses


def hooks(mesh: Any, options: dict[str, Any]) -> None:
    """Hooks on the step see the optimizer's own parameters, before and behind the whole step."""
    single, parallel = models(mesh, options)
    for model in (single, parallel):
        optimizer = Lars(model.parameters())
        seen: list[Any] = []

        def before(optimizer: Any, *_: Any) -> None:
            nn.utils.clip_grad_value_(optimizer.param_groups[0]["params"], 1e-3)

        def behind(optimizer: Any, *_: Any, seen: list[Any] = seen) -> None:
            seen.append([p for p in optimizer.param_groups[0]["params"] if p in optimizer.state])

        optimizer.register_step_pre_hook(before)
        optimizer.register_step_post_hook(behind)
        trained(model, optimizer, 0, STEPS)
        trains = [p for p in model.parameters() if p.requires_grad]
        assert [list(map(id, each)) for each in seen] == [list(map(id, trains))] * STEPS
    same_weights(parallel, single, LIMIT)


def refused(mesh: Any, options: dict[str, Any]) -> None:
    """Different noise on the ranks, and writes beside the step; the next step is right."""
    single, parallel = models(mesh, options)
    optimizer = Counted(parallel.parameters())
    parallel.train_step(**batch(0))
    torch.manual_seed(torch.distributed.get_rank())
    with pytest.raises(RankMismatchError, match=r"torch\.manual_seed with the same number"):
        optimizer.step()
    outside = Outside(parallel.parameters())
    weight = parallel.layers[0].weight
    outside.step()
    outside.written = lambda: weight
    with pytest.raises(InputError, match="written to while the optimizer stepped"):
        outside.step()
    parallel.load_state_dict(single.state_dict())
    parallel.zero_grad()
    trained(single, Lars(single.parameters()), 0, STEPS)
    outside = Outside(parallel.parameters())
    outside.written = None
    trained(parallel, outside, 0, STEPS)
    same_weights(parallel, single, LIMIT)


def coupled(name: str) -> str:
    """The error of an optimizer that needs what other stages hold."""
    _, parallel = models(2, {"pipeline": 2})
    optimizer = OPTIMIZERS[name](parallel.parameters())
    before = parallel.full_state_dict()
    try:
        trained(parallel, optimizer, 0, 1)
    except InputError as error:
        after = parallel.full_state_dict()
        assert all(torch.equal(value, after[key]) for key, value in before.items())
        return str(error)
    return ""
