"""The padded graph computes what the graph computes: in one process, whatever may be padded."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
import transformers

import autopar
from autopar.capture import capture
from autopar.compile.outputs import with_outputs
from autopar.errors import AutoparError, ClashError, PaddingError
from autopar.ir.graph import Graph
from autopar.ir.mesh import Mesh
from autopar.ir.pads import Pad, cuts_evenly, padded_shape, rests, shifts, true_shape
from autopar.ir.placement import Sharding
from autopar.plans.record import Padding
from autopar.request.batch import Batch
from autopar.sharding.padding import Proposal, padded, padding_of, proposals, rewrite
from tests import models, parity
from tests.architectures import ARCHITECTURES, WORKAROUNDS
from tests.capture.interpret import interpret
from tests.uneven import UNEVEN
from tests.wide import Wide

AWKWARD = Mesh.of(5)
"""Five divides hardly any size."""
EVERYDAY = ("gpt2", "llama", "mlp", *UNEVEN)


def zeros_behind(x: torch.Tensor, pads: tuple[Pad, ...]) -> torch.Tensor:
    """A parameter as it enters the padded graph."""
    for pad in pads:
        apart = x.unflatten(pad.dim, (pad.before, pad.size, pad.after))
        more = apart.new_zeros(
            (*apart.shape[: pad.dim + 1], pad.to - pad.size, *apart.shape[pad.dim + 2 :])
        )
        x = torch.cat([apart, more], pad.dim + 1).flatten(pad.dim, pad.dim + 2)
    return x


def copies_behind(x: torch.Tensor, pads: tuple[Pad, ...]) -> torch.Tensor:
    """An input as it enters the padded graph."""
    for pad in pads:
        last = x.narrow(pad.dim, pad.size - 1, 1)
        x = torch.cat([x, *[last] * (pad.to - pad.size)], pad.dim)
    return x


def loss_and_gradients(
    case: parity.Reference, graph: Graph
) -> tuple[torch.Tensor, dict[str, torch.Tensor | None]]:
    """The graph as one process runs it; gradients of the true parameters."""
    pads = {(n.op, n.target): n.outputs[0].pads for n in graph.nodes if n.is_leaf}
    parameters = {
        key: p.detach().clone().requires_grad_(p.requires_grad)
        for key, p in case.model.named_parameters()
    }
    entering = {
        key: zeros_behind(p, pads.get(("parameter", key), ())) for key, p in parameters.items()
    }
    inputs = {
        key: copies_behind(value, pads.get(("input", key), ()))
        for key, value in Batch.of((), case.inputs).tensors.items()
    }
    buffers = {key: b.clone() for key, b in case.model.named_buffers()}
    with Wide() if is_double(case) else nullcontext():
        values = interpret(graph, entering, buffers, inputs)
    assert graph.loss is not None
    loss = values[graph.loss]
    loss.backward()
    return loss.detach(), {key: p.grad for key, p in parameters.items()}


def is_double(case: parity.Reference) -> bool:
    """Some models have operators that know single precision alone."""
    return next(case.model.parameters()).dtype == torch.float64


def check(case: parity.Reference, padding: tuple[Padding, ...]) -> None:
    """Loss and gradients are those without padding."""
    graph = padded(case.graph, padding)
    assert {(p.leaf, p.pad) for p in padding_of(graph)} >= {(p.leaf, p.pad) for p in padding}
    loss, gradients = loss_and_gradients(case, graph)
    near = (1e-10, 1e-9) if is_double(case) else (case.tolerance, case.tolerance)
    assert torch.allclose(loss, case.losses[0], rtol=near[0], atol=0), padding[0]
    scale = max(float(g.abs().max()) for g in case.gradients.values() if g is not None)
    for key, want in case.gradients.items():
        got = gradients[key]
        if want is not None and got is not None:
            assert float((got - want).abs().max()) <= near[1] * scale, (padding[0], key)
        else:
            assert got is None or not got.any(), key


def check_all(name: str, mesh: Mesh) -> tuple[Proposal, ...]:
    """Every size alone, and all of them together as far as they can be."""
    case = parity.reference(name, 1)
    found = proposals(case.graph, mesh, inputs=True)
    for proposal in found:
        for choice in proposal.choices:
            check(case, choice)
    together: tuple[Padding, ...] = ()
    for proposal in found:
        try:
            padded(case.graph, (*together, *proposal.choices[0]))
        except PaddingError:
            continue
        together = (*together, *proposal.choices[0])
    if together:
        check(case, together)
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("name", EVERYDAY)
def test_everyday_models(name: str) -> None:
    assert check_all(name, AWKWARD)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [*models.ALL, *(f"architectures.{a}" for a in ARCHITECTURES if a not in WORKAROUNDS)]
)
def test_every_architecture(name: str) -> None:
    """Whatever is proposed is right, for axes that divide nothing."""
    for size in (5, 7):
        check_all(name, Mesh.of(size))


def graph_of(model: torch.nn.Module, inputs: dict[str, torch.Tensor], loss: Any) -> Graph:
    return with_outputs(capture(model, inputs, loss=loss), ())


def refusal(name: str, leaf: str, pad: Pad) -> str:
    """Why a leaf of a model may not be padded."""
    model, inputs, loss = parity.CASES[name]()
    with pytest.raises(PaddingError) as caught:
        padded(graph_of(model, inputs, loss), (Padding(leaf, pad),))
    return str(caught.value)


@pytest.mark.thorough
def test_what_would_see_the_padding_refuses() -> None:
    """A normalised dim, statistics over a batch, and numbers of positions."""
    assert "layer_norm" in refusal("gpt2", "transformer.wpe.weight", Pad(1, 32, 35))
    assert "batch_norm" in refusal("cnn", "image", Pad(0, 8, 10))
    assert "arange" in refusal("gpt2", "input_ids", Pad(1, 16, 18))
    assert "has no dim 0: 63 -> 64" in refusal("gpt2", "transformer.wte.weight", Pad(0, 63, 64))
    assert "'nothing'" in refusal("gpt2", "nothing", Pad(0, 64, 65))


class Statistics(torch.nn.Module):
    """What one thing of a batch does to the others, one kind at a time."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.up, self.kind = torch.nn.Linear(4, 6), kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.up(x)
        if self.kind == "log of a parameter":
            return (y * self.up.weight.sum(1).log()).sum()
        if self.kind == "softmax over samples":
            return (y.softmax(0) * y).sum()
        if self.kind == "sorted":
            return (y.sort(0)[0] * y).sum()
        return (y - y.mean(0)).square().sum()


@pytest.mark.parametrize(
    ("kind", "leaf", "pad"),
    [
        ("log of a parameter", "up.weight", Pad(0, 6, 8)),
        ("softmax over samples", "x", Pad(0, 5, 8)),
        ("sorted", "x", Pad(0, 5, 8)),
        ("centred", "x", Pad(0, 5, 8)),
    ],
)
def test_nothing_is_guessed(kind: str, leaf: str, pad: Pad) -> None:
    """Singular functions of zeros, and everything that looks along the dim."""
    graph = graph_of(Statistics(kind), {"x": torch.randn(5, 4)}, lambda out: out)
    with pytest.raises(PaddingError):
        padded(graph, (Padding(leaf, pad),))


@pytest.mark.parametrize("forgotten", ["zeros", "ignored", "counted"])
def test_forgotten_masks_are_caught(forgotten: str) -> None:
    """These tests fail if the rewrite leaves one kind of overwriting out."""
    real = rewrite._Rewriter._fills

    def fills(self: Any, node: Any, instance: Any, touch: Any, reads: Any) -> Any:
        return [] if touch.way == forgotten else real(self, node, instance, touch, reads)

    def entries(self: Any, touch: Any, what: str) -> int:
        return int(touch.read[0].to)

    name, size = ("uneven_regression", 6) if forgotten == "zeros" else ("uneven_gpt2", 6)
    size = 257 if forgotten == "counted" else size
    case = parity.reference(name, 1)
    found = next(p for p in proposals(case.graph, AWKWARD, inputs=True) if p.size == size)
    check(case, found.choices[0])
    changed = {"_entries": entries} if forgotten == "counted" else {"_fills": fills}
    # Where the padding of a sum is not zero, the rewrite itself finds that gradients would leak.
    red = pytest.raises((AssertionError, PaddingError))
    with mock.patch.multiple(rewrite._Rewriter, **changed), red:
        check(case, found.choices[0])


def test_gradients_in_the_padding_are_followed() -> None:
    """A sum over padded heads whose weight comes of a product: what it adds up must be protected."""
    model = torch.nn.Module()
    model.down = torch.nn.Linear(5, 3, bias=False)
    model.shift = torch.nn.Parameter(torch.randn(3, 1))

    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x.cos(), model.down.weight * model.shift.exp()).sum()

    model.forward = forward
    graph = graph_of(model, {"x": torch.randn(4, 5)}, lambda out: out)
    padding = (Padding("down.weight", Pad(1, 5, 8)),)
    assert any(node.op == "aten.mul.Tensor" for node in padded(graph, padding).nodes)
    unprotected = mock.patch("autopar.sharding.padding.states._protected", lambda *_: False)
    with unprotected, pytest.raises(PaddingError, match="add up gradients"):
        padded(graph, padding)


def test_where_padded_parameters_rest() -> None:
    """Where `torch.chunk` begins with the rank's own, or where equal shares can be exchanged."""
    mesh, vocabulary, heads = Mesh.of(2, 4), Pad(0, 257, 260), Pad(0, 25, 28, after=64)
    assert cuts_evenly(vocabulary, 4) and not cuts_evenly(vocabulary, 2)
    assert not cuts_evenly(heads, 4) and shifts(heads, 4)
    assert not shifts(Pad(0, 25, 28, after=3), 4)
    for text, pad, fits in (
        ("[I, S(0)]", vocabulary, True),
        ("[S(0), I]", vocabulary, False),
        ("[S(0), S(0, of=2)]", vocabulary, False),
        ("[S(1), S(0)]", vocabulary, True),
        ("[I, S(0)]", heads, True),
        ("[I, S(0, of=28)]", heads, False),
        ("[I, S(0, of=3)]", Pad(0, 25, 28, before=3, after=64), True),
        ("[I, S(0)]", Pad(0, 25, 28, before=3, after=64), False),
    ):
        assert rests(Sharding.parse(text), (pad,), mesh) == fits, (text, pad)
    assert not rests(Sharding.parse("[I, S(0)]"), (Pad(0, 257, 258),), mesh)


def test_shapes() -> None:
    pads = (Pad(0, 25, 28, before=3, after=64), Pad(1, 6, 8))
    assert padded_shape((4800, 6), pads) == (5376, 8)
    assert true_shape((5376, 8), pads) == (4800, 6)
    for wrong in ((0, 5, 5), (0, 5, 4), (-1, 5, 6), (0, 0, 6)):
        with pytest.raises(PaddingError, match="pads nothing"):
            Pad(*wrong)


@pytest.mark.thorough
def test_even_models_are_left_alone() -> None:
    """No proposal, so no second plan."""
    model, inputs, loss = models.gpt2()
    graph = graph_of(model, inputs, loss)
    assert proposals(graph, Mesh.of(2, 2), inputs=True) == ()
    made = autopar.compile_model(model, (2, 2), inputs, loss=loss, hardware="h100")
    assert made.plan.padding == made.plan.padded == ()


@pytest.mark.slow
def test_padding_is_chosen_where_it_pays() -> None:
    """GPT-2 XL's 25 heads on four devices; not so where a link is what one waits for."""
    config = transformers.GPT2Config(n_layer=2, n_head=25, n_embd=1600, loss_type="ForCausalLM")
    with torch.device("meta"):
        model = transformers.GPT2LMHeadModel(config)
    ids = torch.zeros(2, 1024, dtype=torch.int64)
    batch = {"input_ids": ids, "labels": ids}
    plan = autopar.plan(model, (4,), batch, hardware="h100")
    assert {(p.pad.size, p.pad.to) for p in plan.padding} >= {(25, 28)}
    seconds = {each.what: each.objective_s for each in plan.padded}
    assert plan.objective_s < 0.99 * (seconds["nothing"] or 0.0)
    case = parity.CASES["uneven_gpt2"]()
    small = autopar.plan(case[0], (4,), case[1], hardware="cpu")
    assert small.padding == () and len(small.padded) > 1


@pytest.mark.thorough
def test_constraints_may_need_padding() -> None:
    """Only a padded vocabulary can be split; whoever forbids it by local inputs gets no batch padded."""
    model, inputs, _ = parity.CASES["uneven_gpt2"]()
    forced = autopar.plan(
        model, (4,), inputs, hardware="cpu", constraints={"used:*.wte.weight": "[S(0)]"}
    )
    assert [(p.leaf, p.axes) for p in forced.padding] == [("transformer.wte.weight", ("x",))]
    with pytest.raises(AutoparError):
        autopar.plan(
            model, (4,), inputs, hardware="cpu", constraints={"tensor:*.ln_f/layer_norm": "[S(0)]"},
            batches=autopar.Batches(local=True),
        )  # fmt: skip


@pytest.mark.parametrize(
    "more", [{"forbid": {"used:w*": "[S(0)]"}}, {"pin": {"used:weigh*": "[R]"}}]
)
def test_constraints_that_clash_where_a_size_is_padded(more: dict[str, dict[str, str]]) -> None:
    """Without padding no candidate meets the first of them: that is not what is wrong."""
    model, inputs = torch.nn.Linear(8, 5), {"input": torch.zeros(4, 8)}
    asked = {"pin": {"used:weight": "[S(0)]"}}
    made = autopar.plan(model, (2,), inputs, loss=torch.sum, hardware="cpu", constraints=asked)
    assert made.padding
    both = {kind: asked.get(kind, {}) | more.get(kind, {}) for kind in asked | more}
    with pytest.raises(ClashError, match=r"(?s)two constraints clash.*S\(0\).*used '"):
        autopar.plan(model, (2,), inputs, loss=torch.sum, hardware="cpu", constraints=both)


def test_dropout_makes_no_copies() -> None:
    """BERT's mask stays a copy where activations do not; an own norm would meet other numbers."""
    model, inputs, loss = models.bert(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    graph = graph_of(model, {key: value[:6] for key, value in inputs.items()}, loss)
    found = proposals(graph, Mesh.of(4), inputs=True)
    assert any(proposal.is_batch and proposal.size == 6 for proposal in found)
    settings = {"attention_dropout": 0.1}
    model, inputs, loss = models.llama(**settings)
    graph = graph_of(model, {key: value[:6] for key, value in inputs.items()}, loss)
    assert not any(proposal.is_batch for proposal in proposals(graph, Mesh.of(4), inputs=True))
