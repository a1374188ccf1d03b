"""Constants of emitted modules are made once, and again if somebody changes them."""

from __future__ import annotations

import torch

from autopar.runtime.constants import Constants

CPU = torch.device("cpu")


def test_a_constant_is_made_once() -> None:
    constants = Constants()
    first = constants.of([[1, 2]], torch.int64, CPU)
    assert first.tolist() == [[1, 2]]
    assert constants.of([[1, 2]], torch.int64, CPU) is first
    assert constants.of([[1, 2]], torch.float64, CPU).dtype is torch.float64
    assert constants.of(float("nan"), torch.float64, CPU) is constants.of(
        float("nan"), torch.float64, CPU
    )


def test_a_changed_constant_is_made_again() -> None:
    constants = Constants()
    constants.of([1.0], torch.float64, CPU).add_(1.0)
    assert constants.of([1.0], torch.float64, CPU).tolist() == [1.0]


def test_results_do_not_share_a_constants_memory() -> None:
    """A write through NumPy changes no version."""
    constants = Constants()
    made = constants.of([1.0, 2.0], torch.float64, CPU)
    result = constants.apart(made[1:])
    result.numpy()[:] = 5.0
    assert constants.of([1.0, 2.0], torch.float64, CPU).tolist() == [1.0, 2.0]
    other = torch.ones(2)
    assert constants.apart(other) is other


def test_one_of_an_evaluation_serves_training() -> None:
    constants = Constants()
    with torch.inference_mode():
        constants.of([2.0], torch.float64, CPU)
    x = torch.ones(1, dtype=torch.float64, requires_grad=True)
    (x * constants.of([2.0], torch.float64, CPU)).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0]
