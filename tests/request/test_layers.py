"""The layers of each stage."""

from __future__ import annotations

import pytest

from autopar.errors import InputError
from autopar.request.layers import Layers
from autopar.request.pipeline import Pipeline


@pytest.mark.parametrize(
    ("layers", "stages", "count", "expected"),
    [
        (Layers(), 4, 8, (2, 2, 2, 2)),
        (Layers(), 4, 10, (3, 3, 2, 2)),
        (Layers(), 4, 3, (1, 1, 1, 0)),
        (Layers(), 4, 2, (0, 1, 1, 0)),
        (Layers(), 2, 1, (1, 0)),
        (Layers(fewer=(1, 1)), 4, 10, (2, 3, 3, 2)),
        (Layers(fewer=(1, 1)), 1, 10, (10,)),
        (Layers(fewer=(1, 1)), 4, 2, (0, 1, 1, 0)),
        (Layers((0, 2, 1)), 3, 3, (0, 2, 1)),
    ],
)
def test_counts(layers: Layers, stages: int, count: int, expected: tuple[int, ...]) -> None:
    assert layers.counts(stages, count) == expected


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        (Layers((1, 2)), "is for 2 stages; the pipeline has 3"),
        (Layers((1, 1, 1)), "has 3 layers; the model has 4"),
        (Layers(fewer=(9, 9)), "4 layers cannot be divided among 3 stages"),
    ],
)
def test_divisions_that_do_not_fit(layers: Layers, said: str) -> None:
    with pytest.raises(InputError, match=said):
        layers.counts(3, 4)


def test_what_is_no_division() -> None:
    with pytest.raises(InputError, match="whole numbers, not negative"):
        Layers((-1, 2))
    with pytest.raises(InputError, match="only the first and the last stage may be without layers"):
        Layers((1, 0, 1))
    with pytest.raises(
        InputError, match=r"layers=Pipeline|pass the number of layers of each stage"
    ):
        Pipeline(2, layers="some")
    with pytest.raises(InputError, match="both divide"):
        Pipeline(2, cuts=("a",), layers=(1, 1))
    with pytest.raises(InputError, match="is for stages of a given number"):
        Pipeline("auto", layers=(1, 1))
    with pytest.raises(InputError, match="is for pipelines"):
        Pipeline(1, virtual=2)
