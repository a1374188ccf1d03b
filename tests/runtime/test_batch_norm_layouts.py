"""Batch norm over ranks is that of one process, however inputs and gradients lie in memory."""

from __future__ import annotations

import pytest
import torch

from autopar.ir.mesh import Mesh
from autopar.ops.operators import batch_norm
from autopar.runtime.variants import sync_batch_norm
from tests.rules.collectives import here, run_on_all

LAYOUTS = ("contiguous", "reversed", "rotated", "channels_last", "swapped", "expanded")
SHAPES = ((8, 6), (8, 6, 5), (8, 6, 8, 1), (8, 6, 4, 5), (8, 6, 3, 4, 5))


def _laid(x: torch.Tensor, layout: str) -> torch.Tensor:
    if layout == "reversed":
        order = tuple(reversed(range(x.dim())))
        return x.permute(order).contiguous().permute(order)
    if layout == "rotated":
        return x.movedim(0, -1).contiguous().movedim(-1, 0)
    if layout == "channels_last":
        return x.movedim(1, -1).contiguous().movedim(-1, 1)
    if (
        layout == "swapped"
    ):  # where the last dim has one entry, its stride is not that of channels_last
        return x.transpose(1, -1).contiguous().transpose(1, -1)
    return x[..., :1].expand_as(x) if layout == "expanded" and x.dim() > 2 else x


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("of_gradient", LAYOUTS)
@pytest.mark.parametrize("of_input", LAYOUTS)
def test_equals_one_process(
    of_input: str, of_gradient: str, shape: tuple[int, ...], affine: bool
) -> None:
    torch.manual_seed(0)
    x, fed = torch.randn(2, *shape, dtype=torch.float64)
    x, fed = _laid(x, of_input), _laid(fed, of_gradient)
    weight, bias, mean = torch.randn(3, 6, dtype=torch.float64)
    variance = torch.rand(6, dtype=torch.float64)

    def trained(x: torch.Tensor) -> list[torch.Tensor]:
        leaves = [x, weight, bias] if affine else [x]
        return [leaf.detach().requires_grad_() for leaf in leaves]

    def of_rank(rank: int) -> list[torch.Tensor]:
        mine = slice(4 * rank, 4 * rank + 4)
        leaves = trained(x[mine])
        scale = leaves[1:] or [None, None]
        y, *new = sync_batch_norm(leaves[0], *scale, mean, variance, 0.1, 1e-5, axis=here("x"))
        return [y.detach(), *new, *torch.autograd.grad(y, leaves, fed[mine])]

    parts, _ = run_on_all(Mesh.of(2), of_rank)
    # Row-major: of two layouts that differ, the kernel of one process itself sums wrong.
    x, fed = (each.clone(memory_format=torch.contiguous_format) for each in (x, fed))
    whole = trained(x)
    y, *new = batch_norm(whole[0], *(whole[1:] or [None, None]), mean, variance, 0.1, 1e-5)
    wanted = [y.detach(), *new, *torch.autograd.grad(y, whole, fed)]
    for place, want in enumerate(wanted):
        first, second = (part[place] for part in parts)
        got = torch.cat([first, second]) if place in (0, 3) else first
        got = first + second if place > 3 else got
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
