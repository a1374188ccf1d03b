"""Records each application of a `torch.autograd.Function` as one operator.

Its forward runs once on fake tensors. That shows the shapes of its results and effects that no
graph can represent: reads of tensors that are not arguments, changes of arguments, communication
with other ranks. These effects are refused.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from torch import nn

from autopar.capture import _torch
from autopar.capture.observed import Observed
from autopar.capture.where import Whereabouts, location, origin_at, users_frame
from autopar.errors import CaptureError
from autopar.ops.functions import Unfit, apply, cells, operator_of

HARMLESS = {"torch.utils.checkpoint._NoopSaveInputs", "autopar.ops.experts._Experts"}
"""Functions whose backward is that of the operations they wrap, or of the operator they implement."""
REENTRANT = "torch.utils.checkpoint.CheckpointFunction"
NO_TENSORS = (
    "Pass every tensor that it reads as an argument of apply, and nothing else but numbers, strings, "
    "dtypes and sequences of numbers."
)
OTHERWISE = (
    "Or make it an operator: decorate its forward with torch.library.custom_op, give it register_fake "
    "for shapes and register_autograd for its backward, and call that."
)


@contextlib.contextmanager
def functions_as_operators(where: Whereabouts) -> Iterator[None]:
    """Within the context, record a `Function` as one operator; tracing would see only its forward."""

    def answer(cls: Any, args: tuple[Any, ...]) -> Any:
        name = f"{cls.__module__}.{cls.__qualname__}"
        # An operator with a registered backward is recorded as one operator already.
        if name in HARMLESS or cls.__module__ == _torch.REGISTERED:
            with _torch.functions_as_they_are():
                return apply(cls, *args)
        if name == REENTRANT:
            return _block(*args)
        return _Call(cls, args, where, users_frame(sys._getframe(1))).recorded()

    with _torch.functions_answered(answer):
        yield


def _block(run: Any, preserve: bool, *args: Any) -> Any:
    """Run the block of a reentrant checkpoint.

    If no argument carries a gradient, no gradient flows to tensors inside, parameters included.
    """
    flows = any(isinstance(value, torch.Tensor) and value.requires_grad for value in args)
    with torch.set_grad_enabled(flows):
        return run(*args)


class _Call:
    """One application of a `Function` class."""

    def __init__(
        self, cls: Any, args: tuple[Any, ...], where: Whereabouts, frame: FrameType | None
    ) -> None:
        self.cls, self.args = cls, args
        self.place = location(origin_at(frame, where.module))

    def recorded(self) -> Any:
        """Return the results, made by one operator of the graph."""
        self._refuse_surroundings()
        device = next((x.device.type for x in self.args if isinstance(x, torch.Tensor)), "cpu")
        autocast = (device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))
        try:
            operator, applied, operands = operator_of(self.cls, self.args, autocast, self._seen)
        except Unfit as unfit:
            raise self._refused(f"has {unfit}", NO_TENSORS) from None
        return applied.results(operator(*operands))

    def _refuse_surroundings(self) -> None:
        for held in cells(self.cls):
            if isinstance(held, (torch.Tensor, nn.Module)):
                what = f"a {type(held).__name__} from the function around it"
                raise self._refused(f"reads {what}", NO_TENSORS)

    def _seen(self) -> tuple[Any, bool]:
        """Return the forward's result for these arguments, and whether it draws random numbers.

        Raise `CaptureError` if it communicates, changes an argument, or reads a tensor that is no
        argument.
        """
        with _torch.untraced(), Observed(self.args) as observed:
            result = apply(self.cls, *self.args)
        for value in result if isinstance(result, tuple) else (result,):
            if any(value is given for given in self.args if isinstance(given, torch.Tensor)):
                observed.writes = observed.writes or "mark_dirty"
        if observed.sends:
            way = "Remove it: autopar adds the communication that its plan needs."
            raise self._refused(f"communicates with other ranks ({observed.sends})", way)
        if observed.writes:
            way = "Let it compute a new tensor (x = x.clone() first) and leave out ctx.mark_dirty."
            raise self._refused(f"changes an argument in place ({observed.writes})", way)
        if observed.foreign:
            what = f"reads a tensor that is none of its arguments ({observed.foreign})"
            raise self._refused(what, NO_TENSORS)
        return result, observed.draws

    def _refused(self, what: str, way: str) -> CaptureError:
        return CaptureError(
            f"The autograd.Function {self.cls.__qualname__}, applied at {self.place}\n"
            f"{what}, which an operator of a captured graph cannot do. {way} {OTHERWISE}"
        )
