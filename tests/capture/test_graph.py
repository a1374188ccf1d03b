"""What a captured graph looks like, and that no weights are allocated for it."""

from __future__ import annotations

import keyword

import pytest
import torch

from autopar.capture import capture
from autopar.ir.graph import Graph
from tests.capture.compare import captured_equals_eager
from tests.capture.small import small
from tests.models import CASES, bert, cnn, gpt2, llama, mlp


@pytest.fixture(scope="module")
def graphs() -> dict[str, Graph]:
    found = {}
    for name, make in CASES.items():
        model, inputs, loss = make()
        found[name] = capture(model, inputs, loss=loss)
    return found


def test_graphs_check_and_repeat(graphs: dict[str, Graph]) -> None:
    for name, make in CASES.items():
        graphs[name].check()
        model, inputs, loss = make()
        again = capture(model, inputs, loss=loss)
        assert again.digest == graphs[name].digest
        assert str(again) == str(graphs[name])


def test_names_are_identifiers(graphs: dict[str, Graph]) -> None:
    for graph in graphs.values():
        for name in graph.tensors:
            assert name.isidentifier() and not keyword.iskeyword(name)
    names = set(graphs["gpt2"].tensors)
    assert {"wte", "ln_1", "c_attn", "query_states", "c_attn_1", "loss"} <= names
    names = set(graphs["llama"].tensors)
    assert {"embed_tokens", "q_proj", "input_layernorm", "q_proj_1", "down_proj"} <= names


def test_origins(graphs: dict[str, Graph]) -> None:
    node = graphs["gpt2"].producer["c_attn"]
    assert node.origin.module == "transformer.h.0.attn.c_attn"
    assert node.path == "transformer.h.0.attn.c_attn/addmm"
    assert node.origin.file.endswith("pytorch_utils.py") and "addmm" in node.origin.code
    for graph in graphs.values():
        assert all(node.origin.line for node in graph.nodes if not node.is_leaf)


def test_leaves(graphs: dict[str, Graph]) -> None:
    for name, make in CASES.items():
        model, inputs, _ = make()
        graph = graphs[name]
        assert [n.target for n in graph.leaves("parameter")] == [
            key for key, _ in model.named_parameters()
        ]
        assert [n.target for n in graph.leaves("buffer")] == [
            key for key, _ in model.named_buffers()
        ]
        assert [n.target for n in graph.leaves("input")] == list(inputs)
        assert all(n.outputs[0].differentiable for n in graph.leaves("parameter"))
    assert dict(graphs["gpt2"].aliases) == {"lm_head.weight": "transformer.wte.weight"}


def test_outputs_and_mutations(graphs: dict[str, Graph]) -> None:
    assert [path for path, _ in graphs["gpt2"].outputs] == ["loss", "logits"]
    assert [path for path, _ in graphs["mlp"].outputs] == ["output"]
    assert [key for key, _ in graphs["cnn"].mutations] == [
        f"features.{layer}.{key}"
        for layer in (1, 5)
        for key in ("num_batches_tracked", "running_mean", "running_var")
    ]


def test_masks_are_regrouped_not_gathered(graphs: dict[str, Graph]) -> None:
    operators = {node.op for node in graphs["bert"].nodes}
    assert not operators & {"aten.index.Tensor", "aten.__and__.Tensor", "constant"}
    model, inputs, _ = llama()
    mask = torch.ones_like(inputs["input_ids"])
    mask[1, 3:] = 0
    graph = captured_equals_eager(model.double(), {**inputs, "attention_mask": mask}, None, 1e-6)
    assert "aten.index.Tensor" not in {node.op for node in graph.nodes}


def test_frozen_parameters_carry_no_gradient() -> None:
    model, inputs, loss = mlp()
    model.up.requires_grad_(False)
    graph = captured_equals_eager(model.double(), {**inputs, "x": inputs["x"].double()}, loss)
    assert not graph.tensors["up"].differentiable
    assert graph.tensors["middle"].differentiable


def test_evaluation_graph() -> None:
    for make in (gpt2, cnn):
        model, inputs, loss = make()
        graph = capture(model, inputs, loss=loss, train=False)
        assert not any(tensor.differentiable for tensor in graph.tensors.values())
        assert not graph.mutations
        assert not any(node.op == "aten.detach.default" for node in graph.nodes)
        assert model.training and all(module.training for module in model.modules())


def test_a_model_on_meta_gives_the_same_graph(graphs: dict[str, Graph]) -> None:
    for name, make in CASES.items():
        with torch.device("meta"):
            model, _, loss = make()
        assert next(model.parameters()).is_meta
        _, inputs, _ = make()
        assert capture(model, inputs, loss=loss).digest == graphs[name].digest


def test_weights_of_any_size_cost_nothing() -> None:
    with torch.device("meta"):
        model, _, _ = llama(1, hidden_size=16384, intermediate_size=65536, vocab_size=128256)
    _, inputs, _ = llama(1)
    assert capture(model, inputs).tensors["lm_head"].shape == (8, 16, 128256)


def test_inputs_may_be_positional_or_nested() -> None:
    model, inputs = small(lambda m, x: (m.linear(x[0]) * x[1]["scale"]).sum())
    graph = capture(model, ((inputs["x"], {"scale": inputs["x"]}),))
    assert [node.target for node in graph.leaves("input")] == ["0.0", "0.1.scale"]


def test_loss_takes_what_the_model_does_not() -> None:
    model, inputs = small(lambda m, x: m.linear(x))

    def loss(output: torch.Tensor, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return (output - x).pow(2).mean() * scale

    graph = capture(model, {**inputs, "scale": 2.0}, loss=loss)
    assert [node.target for node in graph.leaves("input")] == ["x"]
    assert any(2.0 in node.args for node in graph.nodes)


def test_loss_may_be_a_module() -> None:
    model, inputs = small(lambda m, x: m.linear(x))
    target = torch.tensor([0, 1, 2, 3] * 2)
    graph = capture(model, {**inputs, "target": target}, loss=torch.nn.CrossEntropyLoss())
    assert [node.target for node in graph.leaves("input")] == ["x", "target"]


@pytest.mark.thorough
def test_thirty_two_layers_are_captured_whole() -> None:
    model, inputs, _ = llama(32)
    graph = capture(model, inputs)
    assert len(graph.nodes) > 1500
    assert len({node.origin.module for node in graph.nodes if "layers.31" in node.path}) > 3


def test_bert_runs_without_mask() -> None:
    model, inputs, _ = bert()
    inputs.pop("attention_mask")
    captured_equals_eager(model.double(), inputs)
