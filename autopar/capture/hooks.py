"""Refuses forward hooks that only observe; the computation of other forward hooks is captured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from autopar.capture.python_state import is_library
from autopar.errors import CaptureError
from autopar.utils.messages import argument


@contextmanager
def refuse_observers(model: nn.Module) -> Iterator[None]:
    """Within the context, a forward hook that returns no new output raises `CaptureError`.

    It would run once, on fake tensors. A hook on a module's backward raises as well. Hooks of
    libraries, which collect outputs, are allowed.
    """
    before = [(module, dict(module._forward_hooks)) for module in model.modules()]
    for path, module in model.named_modules():
        if module._backward_hooks or module._backward_pre_hooks:
            raise CaptureError(
                f"{path or 'The model'} has a backward hook, which a captured graph never calls. "
                "Remove it before autopar.parallelize, and change parameter.grad between "
                "backward and optimizer.step() instead."
            )
        for key, hook in module._forward_hooks.items():
            module._forward_hooks[key] = _watched(hook, path)
    try:
        yield
    finally:
        for module, hooks in before:
            module._forward_hooks.update(hooks)


def _watched(hook: Callable[..., Any], path: str) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        made = hook(*args, **kwargs)
        if made is None and not is_library(getattr(hook, "__module__", None) or ""):
            name = getattr(hook, "__qualname__", type(hook).__name__)
            raise CaptureError(
                f"The forward hook {name} on {path or 'the model'} returns nothing, so it would "
                "run only once, during capture, on tensors without values. Remove it before "
                "autopar.parallelize and name the tensors that you want to see with "
                f"{argument('outputs')}; a hook that changes the module's output has to return "
                "it."
            )
        return made

    return called
