"""What every rank does where gradients are scattered in buckets."""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import pytest
import torch

from autopar.plans import buckets
from autopar.runtime import _torch
from autopar.runtime.bucket import Bucket
from autopar.runtime.parallel import Parallel
from autopar.runtime.sharded_parameter import ShardedParameter
from tests import parity

SMALL = 2**12
"""Bytes of a bucket, so that small models have several."""


def small() -> AbstractContextManager[Any]:
    """Within the context, buckets are small."""
    return mock.patch.multiple(buckets, FIRST_NBYTES=SMALL, NBYTES=SMALL)


def in_small_buckets(work: parity.Work) -> Parallel:
    """The module with small buckets."""
    with small():
        return parity.parallel_of(work)


def most_buffers(work: parity.Work) -> tuple[int, int, int]:
    """Buckets that scatter; the most buffers of theirs at a time; those after the backward."""
    parallel, inputs = in_small_buckets(work), parity.reference(work.name).inputs
    scattering = [bucket for bucket in parallel._reducer.buckets if bucket.scatters]
    most = 0
    put = Bucket.put

    def counted(self: Bucket, number: int) -> None:
        nonlocal most
        put(self, number)
        most = max(most, sum(bucket._buffer is not None for bucket in scattering))

    with mock.patch.object(Bucket, "put", counted):
        parallel(**inputs).backward()
    return len(scattering), most, sum(bucket._buffer is not None for bucket in scattering)


def rests(work: parity.Work) -> None:
    """A gradient's storage holds nothing but this rank's part; kept gradients keep their place."""
    parallel, inputs = in_small_buckets(work), parity.reference(work.name).inputs
    parallel(**inputs).backward()
    split = [slot for slot in parallel._slots if any(hop.gathers for hop in slot.hops)]
    assert split
    for slot in split:
        local = _local(slot)
        assert local.untyped_storage().nbytes() == local.nbytes, slot.name
    places = [_local(slot).data_ptr() for slot in split]
    once = [_local(slot).clone() for slot in split]
    parallel(**inputs).backward()
    assert [_local(slot).data_ptr() for slot in split] == places
    for slot, before in zip(split, once, strict=True):
        torch.testing.assert_close(_local(slot), 2 * before)


def failing(work: parity.Work) -> None:
    """A backward fails after a bucket was drained; the next one is right."""
    parallel, inputs = in_small_buckets(work), parity.reference(work.name).inputs
    parallel.zero_grad()
    drained = Bucket.drain

    def broken(self: Bucket) -> None:
        drained(self)
        raise RuntimeError("out of memory")

    with mock.patch.object(Bucket, "drain", broken), pytest.raises(RuntimeError, match="of memory"):
        parallel(**inputs).backward()
    parallel.zero_grad()
    parallel(**inputs).backward()
    gc.collect()
    again = parity.parallel_of(work)
    again(**inputs).backward()
    for slot, other in zip(parallel._slots, again._slots, strict=True):
        torch.testing.assert_close(_local(slot), _local(other))


def names(work: parity.Work) -> list[tuple[str, ...]]:
    """The names in each bucket of the runtime."""
    parallel = in_small_buckets(work)
    return [tuple(slot.name for slot in bucket.slots) for bucket in parallel._reducer.buckets]


def _local(slot: ShardedParameter) -> torch.Tensor:
    assert slot.parameter.grad is not None
    return _torch.local_of(slot.parameter.grad)
