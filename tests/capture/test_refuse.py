"""What capture would silently change is refused, with the user's file and line."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autopar.capture import capture
from autopar.errors import CaptureError, InputError
from tests.capture.compare import captured_equals_eager
from tests.capture.small import Small, small


class Doubled(torch.autograd.Function):
    """It changes what it is given."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)  # type: ignore[attr-defined]
        return x.mul_(2)

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        return 2 * gradient


double = Doubled.apply
BIG = torch.ones(2000, 1, 4, dtype=torch.float64)


def custom_function(m: Small, x: torch.Tensor) -> torch.Tensor:
    return double(m.linear(x)).sum()  # here


def item(m: Small, x: torch.Tensor) -> torch.Tensor:
    hidden = m.linear(x)
    return hidden.sum() * hidden.max().item()  # here


def branch(m: Small, x: torch.Tensor) -> torch.Tensor:
    hidden = m.linear(x)
    if hidden.sum() > 0:  # here
        hidden = hidden * 2
    return hidden.sum()


def boolean_indexing(m: Small, x: torch.Tensor) -> torch.Tensor:
    return m.linear(x)[x.sum(1) > 0].sum()  # here


def masked_select(m: Small, x: torch.Tensor) -> torch.Tensor:
    return m.linear(x).masked_select(x > 0).mean()  # here


def one_hot(m: Small, x: torch.Tensor) -> torch.Tensor:
    return (m.linear(x) * F.one_hot(x.argmax(1))).sum()  # here


def repeated(m: Small, x: torch.Tensor) -> torch.Tensor:
    return torch.repeat_interleave(m.linear(x), x.argmax(1), 0).sum()  # here


def counted(m: Small, x: torch.Tensor) -> torch.Tensor:
    return (m.linear(x).sum() * torch.bincount(x.argmax(1))).sum()  # here


def unique(m: Small, x: torch.Tensor) -> torch.Tensor:
    return m.linear(x).sum() * torch.unique(x.argmax(1)).sum()  # here


def to_list(m: Small, x: torch.Tensor) -> torch.Tensor:
    return m.linear(x).sum() * x.tolist()[0][0]  # here


def overlapping_views(m: Small, x: torch.Tensor) -> torch.Tensor:
    hidden = m.linear(x) * 2
    left, right = hidden[:, :3], hidden[:, 1:]
    left.mul_(2)  # here
    return right.sum()


def input_in_place(m: Small, x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)  # here
    return m.linear(x).sum()


def input_through_a_view(m: Small, x: torch.Tensor) -> torch.Tensor:
    x[:, 0] = 0  # here
    return m.linear(x).sum()


def parameter_in_place(m: Small, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        m.linear.weight.mul_(0.5)  # here
    return m.linear(x).sum()


def through_detach(m: Small, x: torch.Tensor) -> torch.Tensor:
    hidden = m.linear(x)
    hidden.detach().mul_(2)  # here
    return hidden.sum()


def gradient_hook(m: Small, x: torch.Tensor) -> torch.Tensor:
    hidden = m.linear(x)
    hidden.register_hook(torch.neg)  # here
    return hidden.sum()


def inner_backward(m: Small, x: torch.Tensor) -> torch.Tensor:
    m.linear(x).pow(2).sum().backward()  # here
    return m.linear(x).sum()


def batched_gradients(m: Small, x: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    fed = torch.eye(4, dtype=x.dtype)[:, None].expand(4, len(x), 4)
    made = m.linear(x)
    rows = torch.autograd.grad(made, x, fed, is_grads_batched=True, create_graph=True)  # here
    return rows[0].sum()


def forward_derivative(m: Small, x: torch.Tensor) -> torch.Tensor:
    _, made = torch.func.jvp(m.linear, (x,), (torch.ones_like(x),))
    return made.pow(2).sum()  # here


def function_gradient(m: Small, x: torch.Tensor) -> torch.Tensor:
    made = torch.func.grad(lambda y: (y @ m.linear.weight.T).pow(2).sum())(x)  # here
    return made.sum()


def data_attribute(m: Small, x: torch.Tensor) -> torch.Tensor:
    m.linear.bias.data.add_(1)  # here
    return m.linear(x).sum()


def numpy(m: Small, x: torch.Tensor) -> torch.Tensor:
    return m.linear(x).sum() * float(x.numpy().sum())  # here


def large_constant(m: Small, x: torch.Tensor) -> torch.Tensor:
    return (m.linear(x) * BIG).sum()  # here


def constant_in_place(m: Small, x: torch.Tensor) -> torch.Tensor:
    STATE.add_(1)  # here
    return (m.linear(x) * STATE).sum()


STATE = torch.ones(4, dtype=torch.float64)


def vmap(m: Small, x: torch.Tensor) -> torch.Tensor:
    return torch.vmap(lambda row: row * m.linear.bias)(x).sum()  # here


def wrong_shape(m: Small, x: torch.Tensor) -> torch.Tensor:
    return m.linear(x).view(3, 7).sum()  # here


REFUSED: dict[Callable[[Small, torch.Tensor], torch.Tensor], str] = {
    custom_function: "torch.library.custom_op",
    item: "same for every batch",
    branch: "torch.where",
    boolean_indexing: "torch.where(mask, x, 0).sum() / mask.sum()",
    masked_select: "torch.where(mask, x, 0).sum() / mask.sum()",
    one_hot: "F.one_hot(x, num_classes)",
    repeated: "index_select",
    counted: "F.one_hot(x, classes).sum(0)",
    unique: "pass them in as an input",
    to_list: "same for every batch",
    overlapping_views: ".clone()",
    input_in_place: "the input 'x'",
    input_through_a_view: "the input 'x'",
    parameter_in_place: "new tensor",
    through_detach: "without autograd's knowledge",
    gradient_hook: "hook",
    inner_backward: "torch.autograd.grad",
    batched_gradients: "in a loop",
    forward_derivative: "create_graph=True",
    function_gradient: "create_graph=True",
    data_attribute: ".detach()",
    numpy: "NumPy",
    large_constant: "register_buffer",
    constant_in_place: "register_buffer",
    vmap: "torch.vmap",
    wrong_shape: "x (8, 4) float64",
}


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch.func.jvp scripts
@pytest.mark.parametrize("body", REFUSED, ids=lambda body: body.__name__)
def test_refused_with_file_and_line(body: Callable[[Small, torch.Tensor], torch.Tensor]) -> None:
    model, inputs = small(body)
    with pytest.raises(CaptureError) as caught:
        capture(model, inputs)
    source = Path(__file__).read_text().split("\n")
    first = body.__code__.co_firstlineno
    line = next(n for n in range(first, len(source)) if source[n - 1].endswith("# here"))
    assert f"{__file__}:{line}" in str(caught.value)
    assert REFUSED[body] in str(caught.value)


REMEDIES: dict[str, Callable[[Small, torch.Tensor], torch.Tensor]] = {
    "mask": lambda m, x: torch.where(x > 0, m.linear(x), 0).sum() / (x > 0).sum(),
    "one_hot": lambda m, x: (m.linear(x) * F.one_hot(x.argmax(1), 4)).sum(),
    "repeated": lambda m, x: m.linear(x).repeat_interleave(2, 0).square().sum(),
    "index_select": lambda m, x: m.linear(x).index_select(0, x.argmax(1)).square().sum(),
    "bincount": lambda m, x: (m.linear(x) * F.one_hot(x.argmax(1), 4).sum(0)).sum(),
}


@pytest.mark.parametrize("name", REMEDIES)
def test_remedies_are_captured(name: str) -> None:
    captured_equals_eager(*small(REMEDIES[name]))


def test_a_refusal_leaves_the_model_as_it_was() -> None:
    model, inputs = small(item)
    before = {name: (id(p), p.clone()) for name, p in model.named_parameters()}
    with pytest.raises(CaptureError):
        capture(model, inputs)
    for name, parameter in model.named_parameters():
        assert id(parameter) == before[name][0] and torch.equal(parameter, before[name][1])
    model.body = lambda m, x: m.linear(x).sum()
    capture(model, inputs).check()


def test_custom_function_without_gradient_is_traced_through() -> None:
    def body(m: Small, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = double(x.clone())
        return m.linear(y).sum()

    model, inputs = small(body)
    capture(model, inputs).check()
    model.body = custom_function
    capture(model, inputs, train=False).check()


def test_hooks_on_parameters() -> None:
    model, inputs = small(lambda m, x: m.linear(x).sum())
    model.linear.weight.register_hook(torch.neg)
    with pytest.raises(CaptureError, match=re.escape("'linear.weight' has gradient hooks")):
        capture(model, inputs)


def test_buffer_with_gradient() -> None:
    def body(m: Small, x: torch.Tensor) -> torch.Tensor:
        m.mean = m.mean * 0.9 + m.linear(x).mean(0)
        return (m.linear(x) * m.mean).sum()

    model, inputs = small(body, mean=torch.ones(4))
    with pytest.raises(CaptureError, match=r"buffer 'mean' carries a gradient.*detach"):
        capture(model, inputs)


def test_state_outside_buffers() -> None:
    def body(m: Small, x: torch.Tensor) -> torch.Tensor:
        m.last = m.linear(x).mean(0).detach() + m.last
        return (m.linear(x) * m.last).sum()

    model, inputs = small(body)
    model.last = state = torch.ones(4)
    with pytest.raises(CaptureError, match=r"attribute 'last'.*register_buffer"):
        capture(model, inputs)
    assert model.last is state


def test_buffer_filled_in_by_forward() -> None:
    def body(m: Small, x: torch.Tensor) -> torch.Tensor:
        m.cache = m.linear(x).detach()
        return (m.linear(x) * m.cache).sum()

    model, inputs = small(body)
    model.register_buffer("cache", None)
    with pytest.raises(CaptureError, match=r"adds or removes the buffer 'cache'.*__init__"):
        capture(model, inputs)
    assert model.cache is None


def test_buffer_of_another_shape() -> None:
    def body(m: Small, x: torch.Tensor) -> torch.Tensor:
        m.steps = m.steps.repeat(2)
        return m.linear(x).sum()

    model, inputs = small(body, steps=torch.zeros(2))
    with pytest.raises(CaptureError, match=r"shape \(4,\).*'steps' of shape \(2,\)"):
        capture(model, inputs)


def test_by_products_are_taken_out_of_the_modules() -> None:
    def body(m: Small, x: torch.Tensor) -> torch.Tensor:
        m.seen = m.linear(x)
        return m.seen.sum()

    model, inputs = small(body)
    capture(model, inputs)
    assert not hasattr(model, "seen")


def test_no_loss_says_what_to_pass() -> None:
    model, inputs = small(lambda m, x: m.linear(x))
    with pytest.raises(CaptureError, match=r"\(8, 4\).*labels=.*loss="):
        capture(model, inputs)
    assert capture(model, inputs, train=False).loss is None


def test_loss_that_is_no_scalar() -> None:
    model, inputs = small(lambda m, x: m.linear(x))
    with pytest.raises(CaptureError, match=r"loss callable returned a tensor of shape \(8,\)"):
        capture(model, inputs, loss=lambda output: output.sum(1))


def test_inputs_that_fit_nowhere() -> None:
    model, inputs = small(lambda m, x: m.linear(x).sum())
    with pytest.raises(InputError, match=r"'y' fits neither Small\.forward"):
        capture(model, {**inputs, "y": inputs["x"]})
    with pytest.raises(InputError, match="dict of keyword arguments"):
        capture(model, "x")  # type: ignore[arg-type]


def test_autocast_region_inside_the_model() -> None:
    model, inputs = small(lambda m, x: m.linear(x).sum())

    def body(m: Small, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return m.linear(x).sum()

    model.body = body
    model.float()
    graph = capture(model, {"x": inputs["x"].float()})
    assert "bfloat16" in {tensor.dtype for tensor in graph.tensors.values()}


def test_modules_that_are_shared_keep_one_name() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.second = self.first

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x)).sum()

    graph = capture(Twice(), (torch.ones(2, 4),))
    assert [leaf.target for leaf in graph.leaves("parameter")] == ["first.weight", "first.bias"]
    assert dict(graph.aliases) == {
        "second.weight": "first.weight",
        "second.bias": "first.bias",
    }
    assert [leaf.target for leaf in graph.leaves("input")] == ["0"]


class OfComplex(nn.Module):
    def __init__(self, in_tensor: bool) -> None:
        super().__init__()
        self.layer, self.in_tensor = nn.Linear(4, 4), in_tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.layer(x) * (torch.tensor(1j) if self.in_tensor else 1j)).abs().mean()


def test_a_complex_number_is_kept_in_a_tensor() -> None:
    with pytest.raises(CaptureError, match=r"torch\.tensor\(1j\)"):
        capture(OfComplex(False), {"x": torch.ones(2, 4)})
    capture(OfComplex(True), {"x": torch.ones(2, 4)}).check()


class Constant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.layer(x)
        return torch.tensor(1.0)


def test_a_loss_may_depend_on_nothing() -> None:
    capture(Constant(), {"x": torch.ones(2, 4)}).check()
