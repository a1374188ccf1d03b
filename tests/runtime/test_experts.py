"""Mixtures of experts: the operator is the library's function, and experts split by themselves."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
import transformers
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from autopar.capture import capture
from autopar.capture.saved import saved
from autopar.compile.outputs import with_outputs
from autopar.cost.operators import DISPATCH_CALLS, operator_seconds
from autopar.cost.prices import Prices
from autopar.ir.graph import Graph, Node
from autopar.ir.mesh import Mesh
from autopar.ir.placement import S
from autopar.ops.experts import _Experts, _gradients, _mixture, routed_experts
from autopar.plans.decisions import OpSharding
from autopar.render.text.rules import rule_report
from autopar.rules import backward_flops, candidates, flops, rule_of
from autopar.rules.prove import WrongError
from autopar.rules.report import report
from autopar.runtime._torch import TorchDispatchMode
from autopar.runtime.axes import Axis
from autopar.runtime.dispatch import expert_dispatch
from autopar.sharding.compile import Compilation, Settings, compile_graph
from cost_models.hardware import load
from tests.architectures.experts import example_decoder, mixtral, mixtral_batched, mixtral_looped
from tests.rules.building import build
from tests.rules.examples_of_places import EXPERTS
from tests.rules.prove import check, reference, with_rule

WAYS = ("eager", "batched_mm", "grouped_mm")


def library(way: str, activation: str) -> tuple[nn.Module, list[torch.Tensor]]:
    """Six experts as the library builds them, and what they are called with."""
    from transformers.models.mixtral.modeling_mixtral import MixtralExperts

    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        hidden_size=16, intermediate_size=24, num_local_experts=6, hidden_act=activation
    )
    config._experts_implementation = way
    experts = MixtralExperts(config)
    for parameter in experts.parameters():
        nn.init.normal_(parameter, std=0.3)
    # Expert 4 is chosen by nobody.
    chosen = torch.stack([torch.randperm(4)[:2] for _ in range(20)])
    weights = torch.rand(20, 2, requires_grad=True)
    return experts, [torch.randn(20, 16, requires_grad=True), chosen, weights]


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_pytorch_tanh", "relu"])
@pytest.mark.parametrize("way", WAYS)
def test_equals_the_library(way: str, activation: str) -> None:
    """Forward and every gradient, in single precision: one of its kernels knows no other."""
    experts, (x, chosen, weights) = library(way, activation)
    trained = [x, weights, *experts.parameters()]
    fed = torch.randn(20, 16)
    theirs = experts(x, chosen, weights)
    wanted = torch.autograd.grad(theirs, trained, fed)
    name = "gelu_tanh" if "tanh" in activation else activation
    ours = routed_experts(x, chosen, weights, experts.gate_up_proj, experts.down_proj, name)
    torch.testing.assert_close(ours, theirs)
    for got, want in zip(torch.autograd.grad(ours, trained, fed), wanted, strict=True):
        torch.testing.assert_close(got, want)


def test_prices_count_what_is_done() -> None:
    """Products forward and backward, against torch's own counter looking inside the operators."""
    graph = capture(mixtral()[0], mixtral()[1])
    node = next(n for n in graph.nodes if n.op == "autopar.routed_experts.default")
    tensors = [graph.tensors[name] for name in node.operands]
    x, _, weights, up, down = (torch.randn(t.shape) for t in tensors)
    chosen = torch.randint(0, up.shape[0], tensors[1].shape)
    with FlopCounterMode(display=False) as forward:
        _, before = _mixture._init_fn(x, chosen, weights, up, down, "silu", None, None, [])
    assert forward.get_total_flops() == flops(node, graph)
    behind = torch.randn(x.shape[0], down.shape[1])
    with FlopCounterMode(display=False) as backward:
        _gradients._init_fn(behind, x, chosen, weights, up, down, before, "silu", None, None, [])
    assert backward.get_total_flops() == backward_flops(node, graph)


def test_a_choice_of_nobody_adds_nothing() -> None:
    """Numbers below the first and behind the last expert, as ranks see those of others."""
    up, down = torch.randn(2, 3, 4), torch.randn(2, 5, 3)
    chosen = torch.tensor([[-1, 0], [2, 1], [7, -3]])
    made = routed_experts(torch.randn(3, 4), chosen, torch.ones(3, 2), up, down, "relu")
    assert not made[2].any() and made[:2].any()


def test_gradients_are_those_of_ones_own_choices() -> None:
    """As if other ranks' experts were there and made nothing; their choices come first and last."""
    chosen = torch.tensor([[-1, 0], [2, 1], [7, -3], [1, 0]])
    whole = torch.where((chosen >= 0) & (chosen < 2), chosen + 1, 3)
    inputs = [
        torch.randn(shape, dtype=torch.float64) for shape in ((4, 4), (4, 2), (2, 6, 4), (2, 5, 3))
    ]
    x, weights, up, down = (value.requires_grad_() for value in inputs)
    behind = torch.randn(4, 5, dtype=torch.float64)

    def beside(own: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.zeros_like(own[:1]), own, torch.zeros_like(own)])

    mine = routed_experts(x, chosen, weights, up, down, "silu")
    all_of_them = routed_experts(x, whole, weights, beside(up), beside(down), "silu")
    torch.testing.assert_close(mine, all_of_them)
    trained = [x, weights, up, down]
    wanted = torch.autograd.grad(all_of_them, trained, behind)
    for got, want in zip(torch.autograd.grad(mine, trained, behind), wanted, strict=True):
        torch.testing.assert_close(got, want)


def routed(note: str = "") -> tuple[Graph, Node]:
    """An example call of the operator."""
    return build(next(example for example in EXPERTS if example.note == note))


def dispatched(graph: Graph, node: Node, mesh: Mesh) -> list[OpSharding]:
    """The candidates by which tokens travel."""
    every = candidates(graph, mesh, local_inputs=True)[node.name]
    return [option for option in every if option.variant == "expert_dispatch"]


def test_tokens_travel_on_an_axis_that_splits_both() -> None:
    """Tokens may be split on the other axis too, experts are not; each rank has one block of them."""
    graph, node = routed("biases")
    found = dispatched(graph, node, Mesh.of(2, 3))
    for option in found:
        axis = option.variants.index("expert_dispatch")
        x, chosen, weights, *matrices = (form[axis] for form in option.inputs)
        tokens = {x, chosen, weights, option.outputs[0][axis]}
        assert all(isinstance(kind, S) and kind.dim == 0 for kind in tokens)
        assert set(matrices) == {S(0)}
        others = [form[1 - axis] for form in option.inputs[3:]]
        assert not any(isinstance(kind, S) and kind.dim == 0 for kind in others)
    assert any(option.inputs[0].types == (S(0), S(0, 2)) for option in found)


def test_a_wrong_pair_is_refuted() -> None:
    """Parts of experts are not experts: what the proof compares are the results."""
    graph, node = routed()
    wrong = replace(rule_of(node, graph), pairs={"expert_dispatch": ("n", "f")})
    with with_rule(wrong):
        options = dispatched(graph, node, Mesh.of(2))
    assert options
    whole = reference(graph, node)
    for option in options:
        with pytest.raises(WrongError):
            check(whole, option, Mesh.of(2))


def test_ranks_wait_for_the_experts_that_are_chosen_most() -> None:
    """Compute of experts that are split takes longer by the profile's share, nothing else does."""
    graph, node = routed()
    even, mesh = load("h100"), Mesh.of(2)
    uneven = replace(even, device=replace(even.device, expert_imbalance=0.25))
    for option in candidates(graph, mesh, local_inputs=True)[node.name]:
        one, two = (operator_seconds(node, option, graph, Prices(mesh, h)) for h in (even, uneven))
        longer = 1.25 if option.variant else 1.0
        assert two.forward_s == pytest.approx(longer * one.forward_s)
        assert two.backward_s == pytest.approx(longer * one.backward_s)
        assert two.collectives_s == one.collectives_s


class Calls(TorchDispatchMode):
    """Counts operator calls, without those of collectives."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("experts", [2, 8])
def test_calls_of_a_dispatch_are_counted(experts: int) -> None:
    """What it calls more than the operator does is priced; a rank alone sends rows to itself."""
    x, weights = torch.randn(64, 16, requires_grad=True), torch.rand(64, 2, requires_grad=True)
    chosen = torch.randint(0, experts, (64, 2))
    up = torch.randn(experts, 16, 16, requires_grad=True)
    down = torch.randn(experts, 16, 8, requires_grad=True)

    def called(run: Callable[..., torch.Tensor]) -> tuple[int, int]:
        with Calls() as forward:
            made = run(x, chosen, weights, up, down, "silu").sum()
        with Calls() as backward:
            made.backward()
        return forward.count, backward.count

    def sends(made: torch.Tensor, given: torch.Tensor, *_: Any, group: Any) -> None:
        made.data = given

    kernels = {"_mixture": _mixture._init_fn, "_gradients": _gradients._init_fn}
    with mock.patch.multiple("autopar.ops.experts", **kernels):
        here = called(lambda *inputs: _Experts.apply(*inputs, None, None, ()))
    with mock.patch.object(torch.distributed, "all_to_all_single", sends):
        axis: Any = Axis("x", None, 0, 1)  # type: ignore[arg-type]
        there = called(partial(expert_dispatch, axis=axis))
    assert tuple(b - a for a, b in zip(here, there, strict=True)) == DISPATCH_CALLS


def test_a_pair_is_reported() -> None:
    """A person who asks for the rule reads what may be split together, and that it was not tried."""
    text = rule_report(report(*routed("biases")))
    assert "n e     may be split on one axis together; by expert_dispatch" in text
    assert "splitting n and e: needs expert_dispatch, which communicates" in text


def gpt_oss() -> tuple[nn.Module, list[torch.Tensor]]:
    """Six experts as the library builds them, and what they are called with; most gates are clamped."""
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

    torch.manual_seed(0)
    config = transformers.GptOssConfig(
        hidden_size=16, intermediate_size=24, num_local_experts=6, swiglu_limit=0.5
    )
    config._experts_implementation = "eager"
    experts = GptOssExperts(config)
    for parameter in experts.parameters():
        nn.init.normal_(parameter, std=0.3)
    chosen = torch.stack([torch.randperm(4)[:2] for _ in range(20)])
    weights = torch.rand(20, 2, dtype=torch.float64, requires_grad=True)
    x = torch.randn(20, 16, dtype=torch.float64, requires_grad=True)
    return experts.double(), [x, chosen, weights]


def test_equals_gpt_oss() -> None:
    """Biases, alternating columns, clamped gates; in double precision, with every gradient."""
    experts, (x, chosen, weights) = gpt_oss()
    trained, fed = [x, weights, *experts.parameters()], torch.randn(20, 16, dtype=torch.float64)
    theirs = experts(x, chosen, weights)
    wanted = torch.autograd.grad(theirs, trained, fed)
    up, down = experts.gate_up_proj.transpose(1, 2), experts.down_proj.transpose(1, 2)
    biases = experts.gate_up_proj_bias, experts.down_proj_bias
    constants = experts.alpha, experts.limit
    ours = routed_experts(x, chosen, weights, up, down, "clamped_swiglu", *biases, constants)
    torch.testing.assert_close(ours, theirs)
    for got, want in zip(torch.autograd.grad(ours, trained, fed), wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


@pytest.mark.thorough
def test_every_way_of_the_library_is_one_graph() -> None:
    """A loop over experts that anybody chose, look-ups of weights, and sorted tokens."""
    digests = {_captured(make) for make in (mixtral, mixtral_batched, mixtral_looped)}
    assert len(digests) == 1


def _captured(make: object) -> str:
    model, inputs, loss = make()  # type: ignore[operator]
    return capture(model, inputs, loss=loss).digest


def planned(model: nn.Module, batch: int, sequence: int) -> Compilation:
    """The solver's plan on eight devices of one host."""
    tokens = torch.zeros(batch, sequence, dtype=torch.int64)
    graph = with_outputs(capture(model, {"input_ids": tokens, "labels": tokens}), ())
    return compile_graph(graph, Mesh.of(8), load("h100"), Settings(), saved(graph))


@pytest.mark.thorough
def test_experts_of_fixed_capacity_shard_by_themselves() -> None:
    """Tokens are split by batch, go to their experts and come back: two all-to-alls (GShard)."""
    with torch.device("meta"):
        model = example_decoder()(512, 1024, 8, 8192, layers=1, positions=256, experts=64)
    source = planned(model, 64, 256).source
    assert re.search(
        r"sent_part = all_to_all\(sent, self\.mesh\.x, S\(1\), S\(0\)\) +# \[64/x, 64,", source
    )
    assert re.search(r"torch.einsum\('ebcm,emh->ebch', .* +# \[64/x, 64, 10, 8192\]", source)
    assert re.search(
        r"all_to_all\(experts_1, self\.mesh\.x, S\(0\), S\(1\)\) +# \[64, 64/x,", source
    )


@pytest.mark.thorough
def test_experts_of_mixtral_shard_by_themselves() -> None:
    """As the library builds it: tokens are split by batch, and their rows go to their experts' ranks."""
    config = transformers.MixtralConfig(
        hidden_size=1024, intermediate_size=8192, num_hidden_layers=1, num_local_experts=8,
        num_attention_heads=16, num_key_value_heads=8, vocab_size=512,
    )  # fmt: skip
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = transformers.MixtralForCausalLM(config).train()
    made = planned(model, 32, 512)
    assert re.search(
        r"expert_dispatch\(.*, 'silu', axis=self\.mesh\.x\) +# \[16384/x, 1024\]", made.source
    )
    experts = [p for p in made.plan.parameters if "experts" in p.name]
    assert experts and all(str(p.stored) == "[S(0)]" for p in experts)
