"""Refuses what tracing would silently change, with the user's file and line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import nn

from autopar.capture import _torch
from autopar.capture.where import Watcher, Whereabouts, located, location, origin_at
from autopar.errors import AutoparError, CaptureError

BACKWARD = (
    "a backward inside forward would run once, at capture. Move it to the training loop; gradients that "
    "the forward computes with are taken by torch.autograd.grad"
)
LOST: dict[Any, str] = {
    torch.Tensor.register_hook: "its hook on the gradient would be lost. Make the effect an"
    " operator with torch.library.custom_op and register_autograd",
    torch.Tensor.register_post_accumulate_grad_hook: "its hook would be lost. Change "
    "parameter.grad of the parallel module between backward and optimizer.step() instead",
    torch.Tensor.backward: BACKWARD,
    torch.autograd.backward: BACKWARD,
    _torch.READ_DATA: "writes through .data are not captured. Use .detach(), or torch.no_grad() "
    "around an in-place operator on a buffer",
    _torch.WRITE_DATA: "assignments to .data are not captured. Use torch.no_grad() and copy_() "
    "on a buffer",
    torch.Tensor.numpy: "NumPy code cannot be captured. Write it with torch operations",
}
"""torch functions whose effect no graph records, and what to do instead."""
MASKED = (
    "For the mean of the entries in a mask write torch.where(mask, x, 0).sum() / mask.sum(): its shape "
    "is the same for every batch."
)
OTHERWISE = "Use tensor operations such as torch.where, or pass the value as a plain Python number."
OF_BUFFERS = (
    "It is a buffer's value, which may change: keep what Python needs in a plain attribute as well "
    "(self.sizes = [3, 1, 2]), or make the tensor in forward (torch.tensor([3, 1, 2]))."
)
INSTEAD = {
    "one_hot": "Give F.one_hot the number of classes: F.one_hot(x, num_classes).",
    "repeat_interleave": "Repeat by a Python number; or build the indices in the data loader, "
    "pass them as an input, and use index_select.",
    "bincount": "Write F.one_hot(x, classes).sum(0) instead.",
    "unique": "Let the data loader make the unique values, and pass them in as an input.",
    "masked_select": MASKED,
    "nonzero": MASKED,
    "__getitem__": MASKED,
}
"""What to write instead of functions whose shapes or results depend on values."""
SPOKEN: dict[Any, str] = {
    _torch.READ_DATA: "Tensor.data",
    _torch.WRITE_DATA: "Tensor.data",
    torch.autograd.backward: "torch.autograd.backward",
}


RAISES = (
    " A check that only raises can be an assertion, assert torch.all(...), which the graph "
    "omits; or check in the training loop."
)


def watchers() -> Mapping[Any, Watcher]:
    """Return a watcher for each function whose effect would be lost."""

    def refuser(function: Any, why: str) -> Watcher:
        name = SPOKEN.get(function) or getattr(function, "__qualname__", str(function))

        def refuse(args: tuple[Any, ...], frame: FrameType | None) -> None:
            raise CaptureError(f"{name} is called at {location(origin_at(frame))}\n{why}.")

        return refuse

    return {function: refuser(function, why) for function, why in LOST.items()}


@contextlib.contextmanager
def explained(
    model: nn.Module, where: Whereabouts, inputs: Mapping[str, torch.Tensor]
) -> Iterator[None]:
    """Explain errors that the model raises on fake tensors, in the user's terms.

    Raise `CaptureError` for everything but autopar's own errors.
    """
    name = type(model).__name__
    try:
        with _torch.unlogged():
            yield
    except AutoparError:
        raise
    except Exception as error:
        place = _place(error.__traceback__)
        if isinstance(error, _torch.DATA_DEPENDENT) or "data-dependent" in str(error).lower():
            raise CaptureError(
                f"{name} reads the value of a tensor at {place}\n"
                "A captured graph is the same for every batch, so Python cannot branch or "
                "compute on "
                "values (.item(), .tolist(), if tensor:, nonzero, boolean indexing). "
                + _instead(where)
                + (RAISES if _in_an_if(error.__traceback__) else "")
            ) from error
        shapes = ", ".join(
            f"{key} {tuple(t.shape)} {str(t.dtype)[6:]}" for key, t in inputs.items()
        )
        raise CaptureError(
            f"{name} failed at {place}\nwhile it ran on the inputs ({shapes}): "
            f"{type(error).__name__}: {error}{_stray(model) if 'meta' in str(error) else ''}"
        ) from error


def _in_an_if(traceback: TracebackType | None) -> bool:
    """Return whether the line that reads a value decides a branch."""
    code = _place(traceback).rpartition("\n")[2].strip()
    return code.startswith(("if ", "elif ", "assert "))


def _instead(where: Whereabouts) -> str:
    """Return what to write instead of the function that failed."""
    if where.of_buffers:
        return OF_BUFFERS
    known = [INSTEAD[name] for name in where.failed if name in INSTEAD]
    return known[-1] if known else OTHERWISE


def _stray(model: nn.Module) -> str:
    """Return a message about tensors in plain attributes, which have no values on the meta device."""
    found = [
        f"{path}.{key}".lstrip(".")
        for path, module in model.named_modules()
        for key, value in vars(module).items()
        if isinstance(value, torch.Tensor) and value.is_meta
    ]
    if not found:
        return ""
    few = f"{', '.join(found[:3])}{' ...' if len(found) > 3 else ''}"
    return (
        f"\nThese tensors were made under torch.device('meta') and have no values: {few}. They "
        "are plain attributes. Register them (self.register_buffer(name, tensor, "
        "persistent=False)), or make them in forward."
    )


def _place(traceback: TracebackType | None) -> str:
    """Return the innermost of the user's lines in a traceback."""
    frame = None
    line = 0
    while traceback is not None:
        if not traceback.tb_frame.f_code.co_filename.startswith(_torch.TORCH_FOLDERS):
            frame, line = traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next
    if frame is None:
        return "an unknown line"
    return location(located("", frame.f_code.co_filename, line))
