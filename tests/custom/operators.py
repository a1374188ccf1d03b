"""`torch.library.custom_op` operators with shapes and a backward; importing this registers them."""

from __future__ import annotations

from typing import Any

import torch

Pair = tuple[torch.Tensor, torch.Tensor]


@torch.library.custom_op("autopar_tests::swiglu", mutates_args=())
def swiglu(x: torch.Tensor) -> torch.Tensor:
    """Gate and value lie one behind the other in the last dim."""
    gate, value = x.chunk(2, -1)
    return gate * torch.sigmoid(gate) * value


@swiglu.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], x.shape[-1] // 2)


def _keep(ctx: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _swiglu_backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
    gate, value = ctx.saved_tensors[0].chunk(2, -1)
    share = torch.sigmoid(gate)
    slope = share * (1 + gate * (1 - share))
    return torch.cat([gradient * value * slope, gradient * gate * share], -1)


swiglu.register_autograd(_swiglu_backward, setup_context=_keep)


@torch.library.custom_op("autopar_tests::add", mutates_args=())
def scaled_add(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Named like an operator of ATen's, but another one: ``x * 2 + bias``."""
    return x * 2 + bias


@scaled_add.register_fake
def _(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _nothing(ctx: Any, inputs: Pair, output: torch.Tensor) -> None:
    return None


def _add_backward(ctx: Any, gradient: torch.Tensor) -> Pair:
    return gradient * 2, gradient.flatten(0, -2).sum(0)


scaled_add.register_autograd(_add_backward, setup_context=_nothing)


@torch.library.custom_op("autopar_tests::project", mutates_args=())
def project(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A product with a weight that lies [in, out]."""
    return x @ weight


@project.register_fake
def _(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[1])


def _project_backward(ctx: Any, gradient: torch.Tensor) -> Pair:
    x, weight = ctx.saved_tensors
    return gradient @ weight.T, x.flatten(0, -2).T @ gradient.flatten(0, -2)


project.register_autograd(_project_backward, setup_context=_keep)


@torch.library.custom_op("autopar_tests::centred", mutates_args=())
def centred(x: torch.Tensor) -> torch.Tensor:
    """Right forward on any rows, but its backward looks at all of them together."""
    return x.sin()


@centred.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _centred_backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
    return gradient - gradient.mean(0)


centred.register_autograd(_centred_backward, setup_context=_nothing)


@torch.library.custom_op("autopar_tests::windows", mutates_args=())
def windows(x: torch.Tensor, size: int) -> torch.Tensor:
    """Mean of each window of rows; the last one may be shorter."""
    parts = [part.mean(0, keepdim=True).expand_as(part) for part in x.split(size)]
    return torch.cat(parts)


@torch.library.custom_op("autopar_tests::noisy", mutates_args=())
def noisy(x: torch.Tensor) -> torch.Tensor:
    """Draws random numbers and does not say so."""
    return x + torch.rand_like(x)


@torch.library.custom_op("autopar_tests::half_only", mutates_args=())
def half_only(x: torch.Tensor) -> torch.Tensor:
    """A kernel for one dtype."""
    if x.dtype != torch.float16:
        raise RuntimeError("half_only wants float16")
    return x.clone()


@torch.library.custom_op("autopar_tests::bump", mutates_args=("x",))
def bump(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Changes its operand, and says so."""
    x.add_(1)
    return y.clone()


@torch.library.custom_op("autopar_tests::marked", mutates_args=())
def marked(x: torch.Tensor) -> torch.Tensor:
    """The mean of what has the value 7, which no draw has."""
    return torch.where(x == 7, x, 0).mean()


@marked.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(())


def _marked_backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
    (x,) = ctx.saved_tensors
    return gradient / x.numel() * (x == 7)


marked.register_autograd(_marked_backward, setup_context=_keep)
