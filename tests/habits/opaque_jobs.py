"""Models with `autograd.Function`s, and models that arrive wrapped: three layers beside one process."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

import autopar
from tests.distributed.jobs import same_weights

Between = Callable[[torch.Tensor], torch.Tensor]
Function = torch.autograd.Function


class Round(Function):
    """Straight-through: rounded, as if it were not."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
        return torch.round(x * scale) / scale

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, None


class Reversal(Function):
    """Gradient reversal; a view of its argument."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return -0.5 * gradient


reverse = Reversal.apply


class Product(Function):
    """A product with its largest places, in the style with `setup_context`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, weight: torch.Tensor, note: object = None) -> Any:
        y = x @ weight.T
        return y, y.argmax(-1), None

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor, *_: Any) -> Any:
        x, weight = ctx.saved_tensors
        return gradient @ weight, gradient.flatten(0, -2).T @ x.flatten(0, -2), None


class BatchCentred(Function):
    """Rows look at each other, in the forward and in the backward: nothing of it may be split."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient - 2 * gradient.mean(0)


class MeanSquare(Function):
    """A loss whose forward makes its own gradient, as fused cross-entropies do."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(2 * x / x.numel())
        return x.square().mean()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return ctx.saved_tensors[0] * gradient


def made_here(bits: int) -> Between:
    """A class that no import reaches."""

    class Local(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return (x * 2**bits).floor() / 2**bits

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * bits

    return Local.apply  # type: ignore[no-any-return]


two, three = made_here(2), made_here(3)


class Normalised(Function):
    """The identity, whose backward divides the gradient by its norm: it needs all of it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return 1e-2 * gradient / gradient.norm()


class Signs(Function):
    """The identity, whose backward takes the signs of the gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return 1e-3 * gradient.sign()


class Clamped(Function):
    """The identity, whose backward clamps the gradient: linear only below the limit."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.clamp(-1e-4, 1e-4)


class Layer(nn.Module):
    """Two products around something."""

    def __init__(self, between: str) -> None:
        super().__init__()
        self.up, self.down, self.between = nn.Linear(8, 16), nn.Linear(16, 8), between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = BETWEEN[self.between](self, x)
        return x + (y.tanh() * 0.5 + x.sin()) * 0.25


def _product(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    y, places, nothing = Product.apply(x, layer.up.weight)
    assert nothing is None
    return layer.down(y * (places.unsqueeze(-1) + 1).to(y.dtype).sqrt())


def _in_block(layer: Layer, x: torch.Tensor, reentrant: bool) -> torch.Tensor:
    def block(y: torch.Tensor) -> torch.Tensor:
        return layer.down(Round.apply(layer.up(y), 64.0).tanh())

    return checkpoint(block, x, use_reentrant=reentrant)  # type: ignore[no-any-return]


BETWEEN: dict[str, Callable[[Layer, torch.Tensor], torch.Tensor]] = {
    "round": lambda m, x: m.down(Round.apply(m.up(x), 64.0)),
    "reversal": lambda m, x: m.down(reverse(m.up(x)).tanh()),
    "product": _product,
    "centred": lambda m, x: m.down(BatchCentred.apply(m.up(x))),
    "local": lambda m, x: m.down(two(m.up(x)) * three(m.up(x).tanh() * 3)),
    "checkpoint": lambda m, x: _in_block(m, x, False),
    "reentrant": lambda m, x: _in_block(m, x, True),
    "cov": lambda m, x: m.down(m.up(x) * torch.cov(m.up(x).flatten(0, 1).T).square().mean()),
    "corrcoef": lambda m, x: m.down(m.up(x) * torch.corrcoef(m.up(x).flatten(0, 1).T).mean()),
    "plain": lambda m, x: m.down(m.up(x).tanh()),
    "normalised": lambda m, x: m.down(Normalised.apply(m.up(x))),
    "signs": lambda m, x: m.down(Signs.apply(m.up(x))),
    "clamped": lambda m, x: m.down(Clamped.apply(m.up(x))),
    "weight's signs": lambda m, x: m.down(x @ Signs.apply(m.up.weight).T),
}
NOT_LINEAR = ("normalised", "signs", "clamped", "weight's signs")
"""Those whose backward is not linear in the gradient that arrives."""


class Three(nn.Module):
    """Three equal layers and a loss."""

    def __init__(self, between: str, loss: Between | None = None) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.layers = nn.ModuleList(Layer(between) for _ in range(3))
        self.loss = loss

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        made: torch.Tensor = x.square().mean() if self.loss is None else self.loss(x)
        return made


def batch_of(step: int = 0) -> dict[str, torch.Tensor]:
    """Eight samples."""
    generator = torch.Generator().manual_seed(step)
    return {"x": torch.randn(8, 4, 8, generator=generator, dtype=torch.float64)}


def equal_steps(between: str, size: int, fused: bool = False, **options: Any) -> str:
    """Three steps beside one process; the emitted source."""
    torch.manual_seed(0)
    model = Three(between, MeanSquare.apply if fused else None).double()
    return trained(model, copy.deepcopy(model), size, **options)


def trained(model: nn.Module, whole: nn.Module, size: int, **options: Any) -> str:
    """Losses and weights of three steps are those of `whole`."""
    parallel = autopar.parallelize(model, size, batch_of(), hardware="h100", **options)
    mine, theirs = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (parallel, whole))
    for step in range(3):
        batch = batch_of(step)
        theirs.zero_grad()
        want = whole(**batch)
        want.backward()
        theirs.step()
        if "pipeline" in options:
            got = parallel.train_step(**batch)
            mine.step()
            mine.zero_grad()
        else:
            mine.zero_grad()
            got = parallel(**batch)
            got.backward()
            mine.step()
        if got is not None:
            assert abs(float(got) - float(want)) <= 1e-9 * abs(float(want)), (got, want)
    same_weights(parallel, whole, 1e-9)
    return "" if "pipeline" in options else parallel.source


class Called(Three):
    """It overrides `__call__`."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = super().__call__(x=x) * 2
        return made


class Normed(Three):
    """A batch norm whose statistics are of the whole batch."""

    def __init__(self) -> None:
        super().__init__("plain")
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.norm(x))


def _each(change: Callable[[Layer], Any]) -> nn.Module:
    model = Three("plain").double()
    for layer in model.layers:
        change(layer)
    return model


def _compiled_in_place() -> nn.Module:
    model = Three("plain").double()
    model.layers[0].compile(backend="eager")
    model.compile(backend="eager")
    return model


def _compiled_layers() -> nn.Module:
    return _each(lambda m: setattr(m, "up", torch.compile(m.up, backend="eager")))


def _replicated() -> nn.Module:
    return nn.parallel.DistributedDataParallel(Three("plain").double())


UTILS: Any = nn.utils
ARRIVING: dict[str, Callable[[], nn.Module]] = {
    "compiled": lambda: torch.compile(Three("plain").double(), backend="eager"),  # type: ignore
    "compiled in place": _compiled_in_place,
    "compiled layers": _compiled_layers,
    "ddp": _replicated,
    "compiled ddp": lambda: torch.compile(_replicated(), backend="eager"),  # type: ignore
    "data parallel": lambda: nn.DataParallel(Three("plain").double()),
    "sync batch norm": lambda: nn.SyncBatchNorm.convert_sync_batchnorm(Normed().double()),
    "weight norm": lambda: _each(lambda m: UTILS.weight_norm(m.up)),
    "spectral norm": lambda: _each(lambda m: UTILS.spectral_norm(m.up)),
    "new weight norm": lambda: _each(lambda m: UTILS.parametrizations.weight_norm(m.up)),
    "new spectral norm": lambda: _each(lambda m: UTILS.parametrizations.spectral_norm(m.up)),
    "orthogonal": lambda: _each(lambda m: UTILS.parametrizations.orthogonal(m.up)),
    "pruned": lambda: _each(lambda m: prune.l1_unstructured(m.up, "weight", 0.3)),
    "pruned structure": lambda: _each(lambda m: prune.ln_structured(m.down, "weight", 0.5, 2, 0)),
    "called": lambda: Called("plain").double(),
}
"""Models that come as someone had them before."""


def _plain_inside(name: str) -> nn.Module:
    """The same model for one process, where what is around it needs others or a GPU."""
    torch.manual_seed(0)
    if name in ("compiled", "ddp", "compiled ddp", "data parallel", "compiled in place"):
        return Three("plain").double()
    return Normed().double() if name == "sync batch norm" else ARRIVING[name]()


def arriving_steps(name: str, size: int, **options: Any) -> str:
    """Three steps of a model that arrives so, beside one process."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, whole = ARRIVING[name](), _plain_inside(name)
    return trained(model, whole, size, **options)


def _scattered() -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = Three("plain").double()
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return model


def _flat() -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(Three("plain").double(), device_id=torch.device("cpu"))


def _tensor_parallel() -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return parallelize_module(Three("plain").double(), mesh, {"first": ColwiseParallel()})


class Summing(Three):
    """It adds up over ranks by itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = super().forward(x)
        dist.all_reduce(made)
        return made


class SummingDifferently(Three):
    """It adds up by a functional collective."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(super().forward(x), "sum", dist.group.WORLD)


class SumOfGradients(Function):
    """Megatron's: nothing forward, a sum over ranks backward... and the other way round."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "fsdp": (_flat, "FullyShardedDataParallel"),
    "fsdp2": (_scattered, "fully_shard"),
    "tensor parallel": (_tensor_parallel, "'first.weight' of Three is a DTensor"),
    "sums": (lambda: Summing("plain").double(), "communicates with other ranks itself"),
    "functional": (
        lambda: SummingDifferently("plain").double(),
        "communicates with other ranks itself",
    ),
    "function": (
        lambda: Three("plain", SumOfGradients.apply).double(),
        "communicates with other ranks (c10d",
    ),
}


def refused(name: str) -> None:
    """`parallelize` raises in one sentence."""
    make, text = REFUSED[name]
    model = make()
    try:
        autopar.parallelize(model, dist.get_world_size(), batch_of(), hardware="h100")
    except autopar.AutoparError as error:
        assert text in str(error), error
        return
    raise AssertionError(f"{name} was not refused")
