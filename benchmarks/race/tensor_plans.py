"""By hand, for each model: which product is split by columns, which by rows, and what else it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from contender import Weights
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel
from torch.nn.utils import parametrize

Prepare = Callable[[nn.Module, int], None]
Restore = Callable[[dict[str, torch.Tensor], int], Weights]


@dataclass(frozen=True)
class ByHand:
    """Modules of a block by how they are split; `prepare` rewrites the model before, for so many ways,
    and `restored` gives its weights back under the model's names."""

    columns: tuple[str, ...]
    rows: tuple[str, ...]
    prepare: Prepare = lambda module, ways: None
    restored: Restore = lambda weights, ways: weights

    def of_layer(self, layer: nn.Module) -> dict[str, ParallelStyle]:
        """For `parallelize_module`; of the paths, those that the block has."""
        paths = {name for name, _ in layer.named_modules()}
        styles: dict[str, ParallelStyle] = {
            **{name: ColwiseParallel() for name in self.columns if name in paths},
            **{name: RowwiseParallel() for name in self.rows if name in paths},
        }
        if "mlp.experts" in paths:
            styles["mlp.experts"] = Experts()
        return styles


class Experts(ParallelStyle):
    """Every expert split: its inner rows on each rank, one all-reduce behind."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, dim in (("gate_up_proj", 1), ("down_proj", 2)):
            split = distribute_tensor(getattr(module, name).detach(), device_mesh, [Shard(dim)])
            setattr(module, name, nn.Parameter(split))
            parametrize.register_parametrization(module, name, _Local(), unsafe=True)

        def before(_: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
            hidden, index, weights = given
            return _used(hidden, device_mesh), index, _used(weights, device_mesh)

        def behind(_: nn.Module, __: Any, made: torch.Tensor) -> torch.Tensor:
            partial = DTensor.from_local(made, device_mesh, [Partial()], run_check=False)
            whole: torch.Tensor = partial.redistribute(placements=[Replicate()]).to_local()
            return whole

        module.register_forward_pre_hook(before)
        module.register_forward_hook(behind)
        return module


class _Local(nn.Module):
    """What rests here of a split weight."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.to_local() if isinstance(weight, DTensor) else weight


def _used(whole: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """The same on all ranks, used differently by each: its gradients are to be summed."""
    placed = DTensor.from_local(whole, mesh, [Replicate()], run_check=False)
    used: torch.Tensor = placed.to_local(grad_placements=[Partial()])
    return used


def interleaved(tensor: torch.Tensor, dim: int, blocks: int, ways: int) -> torch.Tensor:
    """Rows of `blocks` fused products, so ordered that a plain split gives each rank its part of all."""
    return tensor.unflatten(dim, (blocks, ways, -1)).transpose(dim, dim + 1).flatten(dim, dim + 2)


def separated(tensor: torch.Tensor, dim: int, blocks: int, ways: int) -> torch.Tensor:
    """The way back."""
    return tensor.unflatten(dim, (ways, blocks, -1)).transpose(dim, dim + 1).flatten(dim, dim + 2)


def gpt2_prepare(module: nn.Module, ways: int) -> None:
    """Its Conv1D as Linear, which styles know; query, key and value of a head on one rank."""
    for block in module.get_submodule("transformer.h").children():
        for path in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"):
            parent, name = path.split(".")
            conv = block.get_submodule(path)
            linear = nn.Linear(*conv.weight.shape)
            weight, bias = conv.weight.detach().t(), conv.bias.detach()
            if name == "c_attn":
                weight, bias = interleaved(weight, 0, 3, ways), interleaved(bias, 0, 3, ways)
            linear.weight = nn.Parameter(weight.contiguous())
            linear.bias = nn.Parameter(bias.clone())
            setattr(block.get_submodule(parent), name, linear)
        attention = block.get_submodule("attn")
        attention.split_size //= ways


def gpt2_restored(weights: dict[str, torch.Tensor], ways: int) -> Weights:
    """As Conv1D has them."""
    for name, value in weights.items():
        if ".c_attn." in name:
            value = separated(value, 0, 3, ways)
        if name.startswith("transformer.h.") and ".c_" in name and name.endswith(".weight"):
            value = value.t()
        weights[name] = value
    return weights


def t5_prepare(module: nn.Module, ways: int) -> None:
    """Attention makes zeros for as many heads as it believes to have."""
    for each in module.modules():
        if hasattr(each, "n_heads"):
            each.n_heads //= ways


def moe_prepare(module: nn.Module, ways: int) -> None:
    """Gate and up of an expert's row on one rank."""
    for each in module.modules():
        if hasattr(each, "gate_up_proj"):
            each.gate_up_proj = nn.Parameter(
                interleaved(each.gate_up_proj.detach(), 1, 2, ways).contiguous()
            )


def moe_restored(weights: dict[str, torch.Tensor], ways: int) -> Weights:
    """As Mixtral has them."""
    made = {}
    for name, value in weights.items():
        plain = name.replace("parametrizations.", "").removesuffix(".original")
        made[plain] = separated(value, 1, 2, ways) if "gate_up_proj" in plain else value
    return made


def _all(before: str, names: str) -> tuple[str, ...]:
    return tuple(f"{before}.{name}" for name in names.split())


_ATTENTION = _all("self_attn", "q_proj k_proj v_proj")
_T5 = [f"layer.{place}" for place in ("0.SelfAttention", "1.EncDecAttention")]

PLANS: Mapping[str, ByHand] = MappingProxyType(
    {
        "gpt2": ByHand(
            ("attn.c_attn", "mlp.c_fc"), ("attn.c_proj", "mlp.c_proj"), gpt2_prepare, gpt2_restored
        ),
        "llama": ByHand(
            (*_ATTENTION, "mlp.gate_proj", "mlp.up_proj"), ("self_attn.o_proj", "mlp.down_proj")
        ),
        "bert": ByHand(
            (*_all("attention.self", "query key value"), "intermediate.dense"),
            ("attention.output.dense", "output.dense"),
        ),
        "t5": ByHand(
            (
                *(name for each in _T5 for name in _all(each, "q k v relative_attention_bias")),
                "layer.1.DenseReluDense.wi",
                "layer.2.DenseReluDense.wi",
            ),
            (
                *(f"{each}.o" for each in _T5),
                "layer.1.DenseReluDense.wo",
                "layer.2.DenseReluDense.wo",
            ),
            t5_prepare,
        ),
        "vit": ByHand(
            (*_all("attention", "q_proj k_proj v_proj"), "mlp.fc1"), ("attention.o_proj", "mlp.fc2")
        ),
        "moe": ByHand(_ATTENTION, ("self_attn.o_proj",), moe_prepare, moe_restored),
    }
)
