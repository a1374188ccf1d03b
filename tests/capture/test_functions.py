"""A `torch.autograd.Function` in a graph: one operator, or a refusal that says what to change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from autopar.capture import capture
from autopar.errors import CaptureError, RuleError
from autopar.rules import rule, rule_of
from tests.capture.compare import captured_equals_eager
from tests.capture.small import Small, small
from tests.habits import opaque_jobs as jobs

Function = torch.autograd.Function


def ops_of(graph: Any) -> list[str]:
    return [node.op for node in graph.nodes if node.op.startswith("autopar_functions.")]


class Kinds(Function):
    """Arguments of all kinds, and a default."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Any,
        nothing: Any,
        sizes: Any,
        flags: Any,
        mode: str,
        dtype: Any,
        scale: float = 2,
    ) -> Any:
        assert nothing is None and isinstance(sizes, tuple) and isinstance(flags, list)
        assert mode == "near" and dtype is torch.float64
        ctx.scale = scale
        return x.to(dtype) * scale * sizes[1], 7, None

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *_: Any) -> Any:
        return gradient * ctx.scale * 3, None, None, None, None, None, None


class Named(Function):
    """A name of which random operators have a part: it draws nothing."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.exp()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.clamp(-1, 1)


Named.__qualname__ = Named.__name__ = "_NormalisedRandom"


class Noise(Function):
    """It draws random numbers."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class OwnApply(Function):
    """A class whose `apply` does something first."""

    @classmethod
    def apply(cls, x: torch.Tensor) -> Any:  # type: ignore[override]
        return super().apply(x * 2)

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 5


def kinds(m: Small, x: torch.Tensor) -> torch.Tensor:
    y, seven, nothing = Kinds.apply(m.linear(x), None, (1, 3), [True], "near", torch.float64)
    assert nothing is None
    return (y * seven).square().sum()


def literals(m: Small, x: torch.Tensor) -> torch.Tensor:
    y = jobs.Round.apply(m.linear(x), 4.0)
    return jobs.Round.apply(m.linear(y), 8.0).square().sum()


def factory(m: Small, x: torch.Tensor) -> torch.Tensor:
    return (jobs.two(m.linear(x)) * jobs.three(m.linear(x))).sum()


def nested(m: Small, x: torch.Tensor) -> torch.Tensor:
    inner = checkpoint(lambda y: jobs.reverse(m.linear(y)).tanh(), m.linear(x), use_reentrant=True)
    return inner.square().sum()  # type: ignore[no-any-return]


def reentrant_without_gradient(m: Small, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(m.linear, x, use_reentrant=True).sum() + m.linear.bias.sum()  # type: ignore


def in_no_grad(m: Small, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = jobs.reverse(m.linear(x))
    return jobs.reverse(m.linear(y)).square().sum()  # type: ignore[no-any-return]


EQUAL: dict[Callable[[Small, torch.Tensor], torch.Tensor], int] = {
    kinds: 1,
    literals: 2,
    factory: 2,
    nested: 1,
    in_no_grad: 1,
    lambda m, x: Named.apply(m.linear(x)).sum(): 1,
    lambda m, x: OwnApply.apply(m.linear(x)).sum(): 1,
    lambda m, x: jobs.MeanSquare.apply(m.linear(x)): 1,
}  # type: ignore[dict-item]


@pytest.mark.parametrize("body", EQUAL, ids=lambda body: body.__name__)
def test_equal_to_eager(body: Any) -> None:
    model, inputs = small(body)
    assert len(ops_of(captured_equals_eager(model, inputs))) == EQUAL[body]


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_reentrant_checkpoint_of_an_input_gives_no_gradient() -> None:
    captured_equals_eager(*small(reentrant_without_gradient))


def test_random_numbers_are_said() -> None:
    model, inputs = small(lambda m, x: Noise.apply(m.linear(x)).sum())
    (op,) = ops_of(capture(model, inputs))
    assert op.split(".")[1].endswith("Noise_random")
    model, inputs = small(lambda m, x: Named.apply(m.linear(x)).sum())
    graph = capture(model, inputs)
    (node,) = (node for node in graph.nodes if node.op.startswith("autopar_functions."))
    assert rule_of(node, graph).source == "discovered"


def test_a_users_rule() -> None:
    class Mine(jobs.Round):
        pass

    rule(Mine, "b* -> b*")
    model, inputs = small(lambda m, x: Mine.apply(m.linear(x), 2.0).sum())
    graph = capture(model, inputs)
    (node,) = (node for node in graph.nodes if node.op.startswith("autopar_functions."))
    assert rule_of(node, graph).source == "user"

    class Wrong(jobs.BatchCentred):
        pass

    rule(Wrong, "b* -> b*")
    model, inputs = small(lambda m, x: Wrong.apply(m.linear(x)).sum())
    graph = capture(model, inputs)
    (node,) = (node for node in graph.nodes if node.op.startswith("autopar_functions."))
    with pytest.raises(RuleError, match="is wrong"):
        rule_of(node, graph)
    with pytest.raises(RuleError, match=r"not a torch\.autograd\.Function"):
        rule(Small, "b* -> b*")


class Reads(Function):
    """It reads a module's weight."""

    module: Any = None

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * Reads.module.linear.weight

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class Runs(Function):
    """It takes a function."""

    @staticmethod
    def forward(ctx: Any, function: Any, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = function(x)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return None, gradient


def reads(m: Small, x: torch.Tensor) -> torch.Tensor:
    Reads.module = m
    return Reads.apply(m.linear(x)[:4]).sum()


def closes_over(m: Small, x: torch.Tensor) -> torch.Tensor:
    weight = m.linear.weight

    class Closed(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient @ weight

    return Closed.apply(m.linear(x)).sum()  # type: ignore[no-any-return]


REFUSED: dict[Callable[[Small, torch.Tensor], torch.Tensor], str] = {
    reads: "Reads, applied at .*reads a tensor that is none of its arguments",
    closes_over: "Closed, applied at .*reads a (Parameter|FakeTensor) from the function around it",
    lambda m, x: Runs.apply(torch.sin, m.linear(x)).sum(): "an argument of type builtin",
    lambda m, x: Runs.apply(m.linear, x).sum(): "an argument of type Linear",
}  # type: ignore[dict-item]


@pytest.mark.parametrize("body", REFUSED)
def test_refused(body: Any) -> None:
    model, inputs = small(body)
    with pytest.raises(CaptureError, match=f"(?s){REFUSED[body]}.*torch.library.custom_op"):
        capture(model, inputs)


def test_apply_is_as_it_was() -> None:
    before = Function.apply.__func__.__code__  # type: ignore[attr-defined]
    model, inputs = small(kinds)
    capture(model, inputs)
    model.body = lambda m, x: m.linear(x).sum().item()
    with pytest.raises(CaptureError):
        capture(model, inputs)
    assert Function.apply.__func__.__code__ is before  # type: ignore[attr-defined]


def test_autocast_inside() -> None:
    model, inputs = small(lambda m, x: jobs.Product.apply(x, m.linear.weight)[0].float().sum())
    model.float()
    graph = capture(model, {"x": inputs["x"].float()}, autocast=torch.bfloat16)
    (node,) = (node for node in graph.nodes if node.op.startswith("autopar_functions."))
    assert node.outputs[0].dtype == "bfloat16" and node.args[1] is not None
