"""Compares a batch that fails with the example inputs, and names the differences in the error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from autopar.errors import CaptureError, InputError
from autopar.request.batch import Batch, places_of, tensors_in
from autopar.request.nested import below, items_of

LISTED = 8
"""Largest number of differences in a message."""


@dataclass(frozen=True)
class Expected:
    """The example inputs that later batches are compared with.

    A later batch may be of another kind (an additional optional input, another dtype), and is captured
    again.  If that fails, its differences from the `example` are the likely reason.
    """

    example: Batch

    def check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise `InputError` for data other than a tensor where the example had one.

        It would be captured as constants.
        """
        found = {
            name: value
            for place, given in places_of(args, kwargs).items()
            for name, value in _all_in(given, place)
        }
        for key, tensor in self.example.tensors.items():
            value = found.get(key)
            is_data = isinstance(value, (list, tuple)) or hasattr(value, "__array__")
            if is_data and not tensors_in(value, key) and not isinstance(value, torch.Tensor):
                raise InputError(
                    f"{key!r} is a {type(value).__name__}; pass a tensor, which the example inputs "
                    f"had ({_form(tensor)})."
                )

    @contextmanager
    def explained(self, batch: Batch) -> Iterator[None]:
        """Turn failures of a batch of another kind into an `InputError` that names the differences."""
        try:
            yield
        except (CaptureError, InputError, RuntimeError) as error:
            other = isinstance(error, (dist.DistError, torch.OutOfMemoryError))
            about = type(error) in (CaptureError, InputError) or isinstance(error, RuntimeError)
            if other or not about or not self.differences(batch):
                raise
            raise InputError(f"{self.refusal(batch)}\n{type(error).__name__}: {error}") from error

    def refusal(self, batch: Batch) -> str:
        """Return the message for a batch of another kind."""
        found = self.differences(batch)
        more = f"; and {len(found) - LISTED} more" if len(found) > LISTED else ""
        return (
            "The model does not run on this batch, which does not match the example inputs: "
            f"{'; '.join(found[:LISTED])}{more}. Pass it the way the example inputs were passed."
        )

    def differences(self, batch: Batch) -> list[str]:
        """Return the differences from the example in keys, dtypes and constants, not shapes."""
        had, has = _kinds(self.example), _kinds(batch)
        lacks = [
            f"this batch has no {k!r}, which they had ({had[k][1]})" for k in had if k not in has
        ]
        more = [f"{k!r} ({has[k][1]}), which they had not" for k in has if k not in had]
        other = [
            f"{k!r} is {has[k][1]}, and was {had[k][1]}"
            for k in had
            if k in has and has[k][0] != had[k][0]
        ]
        return [*lacks, *other, *(f"this batch has {words}" for words in more)]


def _kinds(batch: Batch) -> dict[str, tuple[object, str]]:
    """Return for each input what is compared (a tensor's dtype, a constant's value) and its text."""
    tensors = {key: (tensor.dtype, _form(tensor)) for key, tensor in batch.tensors.items()}
    return {**tensors, **{key: (value, value) for key, value in batch.constants}}


def _all_in(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of a container and of everything inside."""
    yield key, value
    items = None if isinstance(value, torch.Tensor) else items_of(value)
    for part, item in items or ():
        yield from _all_in(item, below(key, part))


def _form(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
