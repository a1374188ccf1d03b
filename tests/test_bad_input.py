"""Bad input: a clear error that names what the user wrote and says what to do next."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import autopar
from autopar.errors import CaptureError, ConstraintError, InputError, MeshError, PlanError
from autopar.plans.plan_data import SCHEMA
from autopar.runtime import checkpoint
from autopar.runtime.weights.source import opened
from tests import models


def plan(**changes: object) -> autopar.Plan:
    model, inputs, loss = models.mlp()
    options = {"mesh": (2, 2), "example_inputs": inputs, "loss": loss, "hardware": "cpu", **changes}
    return autopar.plan(model, **options)


def test_missing_example_inputs() -> None:
    with pytest.raises(InputError, match=r"MLP brings no example inputs.*example_inputs=.*'x'"):
        plan(example_inputs=None)


def test_offered_example_inputs_are_taken() -> None:
    class Offers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.example_input_array = torch.randn(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x).square().sum()

    assert autopar.plan(Offers(), 2, hardware="cpu").model == "Offers"


def test_a_loss_that_is_no_function() -> None:
    with pytest.raises(InputError, match=r"loss is 'mse'; pass a function of the model's output"):
        plan(loss="mse")


def test_a_loss_whose_names_nobody_knows_takes_the_output_alone() -> None:
    model, inputs = torch.nn.Linear(8, 4), {"input": torch.zeros(4, 8)}
    found = autopar.plan(model, (2,), inputs, loss=torch.sum, hardware="cpu")
    assert found.estimate.step_s > 0
    with pytest.raises(InputError, match=r"fits neither Linear.*\(built in"):
        autopar.plan(model, (2,), inputs | {"y": inputs["input"]}, loss=torch.sum, hardware="cpu")


def test_model_without_a_loss() -> None:
    with pytest.raises(CaptureError, match=r"no loss to train on.*loss="):
        plan(loss=None, example_inputs={"x": torch.randn(8, models.HIDDEN)})


def test_unknown_hardware() -> None:
    with pytest.raises(InputError, match=r"'h10'.*'h100'.*autopar calibrate"):
        plan(hardware="h10")


def test_unknown_preset() -> None:
    with pytest.raises(InputError, match=r"'fsdpp'.*ddp, .*fsdp"):
        plan(preset="fsdpp")


@pytest.mark.parametrize("mesh", ["2y2", (2, "2"), (0, 2), (), "2,2"])
def test_bad_meshes(mesh: object) -> None:
    with pytest.raises(MeshError):
        plan(mesh=mesh)


def test_a_dim_that_no_axis_divides_and_a_norm_looks_along_cannot_be_forced() -> None:
    """It cannot be padded either; without the norm it can (`tests/sharding/test_padding.py`)."""

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(7, 5), nn.LayerNorm(5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.linear(x)).square().mean()

    inputs = {"x": torch.randn(3, 7)}
    free = autopar.plan(Odd(), 2, inputs, hardware="cpu")
    assert not any(parameter.leaf.is_split for parameter in free.parameters)
    with pytest.raises(ConstraintError, match=r"linear.weight.*S\(0\)"):
        autopar.plan(Odd(), 2, inputs, hardware="cpu", constraints={"leaf:linear.weight": "[S(0)]"})


@pytest.mark.parametrize("place", ["up.weight", "used:up.weight", "stored:up.weight"])
def test_a_constraint_on_a_dim_that_is_not_there(place: str) -> None:
    with pytest.raises(ConstraintError, match=r"up(\.weight|/linear) has no dim 5.*shape is \["):
        plan(constraints={place: "[S(5), *]"})
    assert plan(constraints={place: "[S(5) | R | I, *]"})


def test_what_is_forbidden_may_be_missing_in_some_but_not_everywhere() -> None:
    """A pattern speaks of vectors and matrices; a dim that none of them has is a slip."""
    assert plan(constraints={"forbid": {"leaf:*": {"y": "S(1)"}}})
    with pytest.raises(ConstraintError, match=r"has no dim 2.*shape is \["):
        plan(constraints={"forbid": {"leaf:*": {"y": "S(2)"}}})


def test_a_model_that_is_no_module() -> None:
    for model, what in ((lambda x: x, "a function"), (nn.Linear, "the class Linear")):
        with pytest.raises(InputError, match=f"nn.Module, not {what}.*pass an instance"):
            autopar.plan(model, 2, hardware="cpu")  # type: ignore[arg-type]


def test_checkpoints_and_weights_that_are_not_there(tmp_path: Path) -> None:
    model, nowhere = nn.Linear(3, 5), tmp_path / "nope"
    with pytest.raises(InputError, match=r"nope: the directory does not exist"):
        checkpoint.load(nowhere, model)
    for path in (nowhere, nowhere.with_suffix(".safetensors")):
        with pytest.raises(InputError, match=r"weights=.*nope.* does not exist"):
            opened(path)


def test_a_checkpoint_of_another_size(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "step", nn.Linear(3, 5))
    with pytest.raises(InputError, match=r": 'weight' is \[5, 3\], the model's \[5, 4\]\. Build"):
        checkpoint.load(tmp_path / "step", nn.Linear(4, 5))


def test_a_constraint_that_matches_nothing() -> None:
    with pytest.raises(ConstraintError, match=r"No name matches.*'nope'.*up\.weight"):
        plan(constraints={"leaf:nope": "[S(0), R]"})


@pytest.mark.parametrize("limit", ["40 parsecs", "-3", 0])
def test_bad_memory_limits(limit: object) -> None:
    with pytest.raises(InputError, match="memory limit"):
        plan(memory_limit=limit)


@pytest.mark.thorough
def test_a_memory_limit_that_nothing_meets() -> None:
    with pytest.raises(autopar.AutoparError, match=r"fits 1000 bytes.*smallest needs .* KiB"):
        plan(memory_limit=1000)


def test_bad_options() -> None:
    with pytest.raises(InputError, match="float13"):
        plan(precision="float13")
    with pytest.raises(InputError, match=r"pass \['logits'\]"):
        plan(batches=autopar.Batches(outputs="logits"))
    with pytest.raises(InputError, match="has no output 'nope'"):
        plan(batches=autopar.Batches(outputs=("nope",)))


def test_no_processes() -> None:
    model, inputs, loss = models.mlp()
    with pytest.raises(MeshError, match="torchrun"):
        autopar.parallelize(model, (2, 2), inputs, loss=loss)


@pytest.mark.thorough
@pytest.mark.parametrize("share", [0.9, 0.7])
def test_a_memory_limit_counts_the_largest_operator_too(share: float) -> None:
    free = plan()
    limit = share * free.estimate.memory_nbytes
    limited = plan(memory_limit=limit)
    assert limited.estimate.memory_nbytes <= limit
    assert limited.bound_s <= limited.objective_s


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "{}",
        lambda text: "not json",
        lambda text: text.replace(f'"schema": {SCHEMA}', '"schema": 2'),
        lambda text: text.replace("[S(0)", "[Q(0)", 1),
        lambda text: text.replace('"mesh": "x=2, y=2"', '"mesh": "x=2, x=2"'),
    ],
)
def test_corrupt_plans(damage: object) -> None:
    text = plan(preset="fsdp").to_json()
    with pytest.raises(PlanError, match=r"my\.json"):
        autopar.Plan.from_json(damage(text), "my.json")  # type: ignore[operator]


def test_plans_of_other_graphs_and_wrong_steps() -> None:
    model, inputs, loss = models.mlp()
    made = autopar.compile_model(model, (2, 2), inputs, loss=loss, hardware="cpu", preset="fsdp")
    other = autopar.compile_model(
        model, (2, 2), {k: v[:4] for k, v in inputs.items()}, loss=loss, hardware="cpu"
    )
    with pytest.raises(PlanError, match="digest"):
        made.plan.check(other.graph)
    content = json.loads(made.plan.to_json())
    content["conversions"][0]["target"] = content["conversions"][0]["source"]
    with pytest.raises(PlanError):
        autopar.Plan.from_json(json.dumps(content)).check(made.graph)


def test_plan_round_trip() -> None:
    made = plan(preset="fsdp_megatron")
    again = autopar.Plan.from_json(made.to_json())
    assert again == made and again.digest == made.digest


class Lazy(torch.optim.Optimizer):
    """Needs an argument that nobody gives."""

    def __init__(self, params: object, secret: int) -> None:
        super().__init__(params, {"secret": secret})  # type: ignore[arg-type]


def test_optimizers_are_tried_out() -> None:
    kept = {name: plan(optimizer=name).estimate for name in ("SGD", "Adagrad", "AdamW")}
    assert kept["SGD"].optimizer_nbytes == 0
    assert kept["AdamW"].optimizer_nbytes == 2 * kept["AdamW"].parameter_nbytes
    assert kept["Adagrad"].optimizer_nbytes == kept["Adagrad"].parameter_nbytes
    with pytest.raises(InputError, match=r"'Addam'.*AdamW"):
        plan(optimizer="Addam")
    with pytest.raises(InputError, match=r"optimizer='Lazy' cannot be run.*optimizer='AdamW'"):
        plan(optimizer=Lazy)


def test_an_optimizer_of_one_kernel_is_priced_as_one() -> None:
    """Whether it is given as a class with arguments or as text; a plan keeps which."""
    fused = partial(torch.optim.AdamW, fused=True, lr=1e-3)
    slow, fast = plan(hardware="cpu"), plan(hardware="cpu", optimizer=fused)
    assert fast.optimizer == "AdamW(fused=True)"
    assert slow.estimate.parts is not None and fast.estimate.parts is not None
    assert fast.estimate.parts.update_s < 0.5 * slow.estimate.parts.update_s
    assert fast.estimate.optimizer_nbytes == slow.estimate.optimizer_nbytes
    assert plan(hardware="cpu", optimizer=fast.optimizer).digest == fast.digest
    with pytest.raises(InputError, match=r"'Adadelta\(fused=True\)' cannot be run"):
        plan(optimizer="Adadelta(fused=True)")
    with pytest.raises(InputError, match=r"no optimizer 'AdamW\(lr=1\)'.*'AdamW\(fused=True\)'"):
        plan(optimizer="AdamW(lr=1)")


@pytest.mark.parametrize(
    ("optimizer", "name", "states"),
    [
        (partial(torch.optim.SGD, lr=0.1), "SGD", 0),
        (partial(torch.optim.SGD, lr=0.1, momentum=0.9), "SGD(momentum=0.9)", 1),
        (partial(torch.optim.AdamW, amsgrad=True), "AdamW(amsgrad=True)", 3),
        (
            partial(torch.optim.AdamW, fused=True, amsgrad=True),
            "AdamW(amsgrad=True, fused=True)",
            3,
        ),
        (
            partial(torch.optim.RMSprop, centered=True, momentum=0.5),
            "RMSprop(momentum=0.5, centered=True)",
            3,
        ),
    ],
)
def test_arguments_that_decide_what_is_kept_count(
    optimizer: partial[torch.optim.Optimizer], name: str, states: int
) -> None:
    made = plan(optimizer=optimizer)
    assert made.optimizer == name
    assert made.estimate.optimizer_nbytes == states * made.estimate.parameter_nbytes
    assert plan(optimizer=name).digest == made.digest


def test_bfloat16_rests_in_float32() -> None:
    wide, low = plan(preset="ddp").estimate, plan(preset="ddp", precision="bfloat16").estimate
    assert low.parameter_nbytes == 1.5 * wide.parameter_nbytes
    assert low.optimizer_nbytes == wide.optimizer_nbytes
