"""A later batch of another kind: the error names the input, what the example had and what came."""

from __future__ import annotations

import re
from typing import Any

import numpy
import pytest
import torch

from autopar.errors import CaptureError, InputError, RankFailedError
from autopar.request.batch import Batch
from autopar.runtime.expected import Expected

X, Y = torch.zeros(6, 28), torch.zeros(6, 13)
EXPECTED = Expected(Batch.of((), {"x": X, "y": Y, "mode": "mse", "more": {"mask": X, "w": None}}))
CALL: dict[str, Any] = {"x": X, "y": Y, "mode": "mse", "more": {"mask": X, "w": None}}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"x": X.tolist()},
            "'x' is a list; pass a tensor, which the example inputs had (float32[6",
        ),
        ({"x": numpy.zeros((6, 28))}, "'x' is a ndarray; pass a tensor"),
        ({"more": {"mask": [1.0], "w": None}}, "'more.mask' is a list; pass a tensor"),
    ],
)
def test_data_that_is_no_tensor(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        EXPECTED.check((), {**CALL, **changed})


@pytest.mark.parametrize("changed", [{"x": X[:2]}, {"y": None}, {"y": 3.0}, {"more": None}])
def test_what_may_come_in_place_of_a_tensor(changed: dict[str, Any]) -> None:
    EXPECTED.check((), {**CALL, **changed})
    EXPECTED.check((), {"x": X})


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"x": X.double()}, "'x' is float64[6, 28], and was float32[6, 28]"),
        ({"x": X.long()}, "'x' is int64[6, 28], and was float32[6, 28]"),
        ({"y": None}, "'y' is None, and was float32[6, 13]"),
        ({"more": {"mask": X, "w": X}}, "'more.w' is float32[6, 28], and was None"),
        ({"mode": "l1"}, "'mode' is 'l1', and was 'mse'"),
        ({"zz": Y}, "this batch has 'zz' (float32[6, 13]), which they had not"),
    ],
)
def test_a_failure_names_what_is_different(changed: dict[str, Any], words: str) -> None:
    batch = Batch.of((), {**CALL, **changed})
    for error in (CaptureError("at line 3"), InputError("at line 3"), RuntimeError("at line 3")):
        said = pytest.raises(InputError, match=f"(?s){re.escape(words)}.*at line 3")
        with said as found, EXPECTED.explained(batch):
            raise error
        assert found.value.__cause__ is error


def test_a_missing_key() -> None:
    lacking = Batch.of((), {key: value for key, value in CALL.items() if key != "y"})
    assert EXPECTED.differences(lacking) == [
        "this batch has no 'y', which they had (float32[6, 13])"
    ]


def test_other_failures_stay_what_they_are() -> None:
    same, other = Batch.of((), {**CALL, "x": X[:2]}), Batch.of((), {"x": X.double()})
    for batch, kind in ((same, CaptureError), (same, RuntimeError), (other, RankFailedError)):
        with pytest.raises(kind, match=r"^what it was$"), EXPECTED.explained(batch):
            raise kind("what it was")
