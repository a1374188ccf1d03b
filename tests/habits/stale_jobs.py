"""An update between a forward and its backward, on ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import autopar
from autopar.errors import InputError
from tests.habits.outside_jobs import Base, batches, entropy


def updated_between(how: str, options: dict[str, Any]) -> None:
    """Raises as one process does, leaves no gradient, and the next step is that of one process."""
    first, second = batches(2)
    parallel = autopar.parallelize(Base().double(), 2, first, loss=entropy, **options)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    parallel(**first).backward()
    late = parallel(**second)
    if how == "step":
        optimizer.step()
    else:
        with torch.no_grad():
            parallel.layers[2].weight.mul_(2.0)
    with pytest.raises((InputError, RuntimeError), match=r"changed in place|inplace operation"):
        late.backward()
    optimizer.zero_grad()
    single = Base().double()
    single.load_state_dict(parallel.full_state_dict())
    entropy(single(second["x"]), second["y"]).backward()
    parallel(**second).backward()
    for name, parameter in single.named_parameters():
        got = parallel.get_parameter(name).grad.full_tensor()
        assert (got - parameter.grad).abs().max() <= 1e-9, name


def read_between(options: dict[str, Any]) -> None:
    """Two forwards before two backwards, an evaluation and reads between them change nothing."""
    first, second = batches(2)
    parallel = autopar.parallelize(Base().double(), 2, first, loss=entropy, **options)
    single = Base().double()
    single.load_state_dict(parallel.full_state_dict())
    one, other = parallel(**first), parallel(**second)
    with torch.no_grad():
        parallel(**first)
    parallel.full_state_dict()
    other.backward()
    one.backward()
    for batch in (first, second):
        entropy(single(batch["x"]), batch["y"]).backward()
    for name, parameter in single.named_parameters():
        got = parallel.get_parameter(name).grad.full_tensor()
        assert (got - parameter.grad).abs().max() <= 1e-9, name
