"""What nobody can mean is refused, where the cost models are used alone."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import pytest

from cost_models.collectives import axis_link, lateness, ring_terms
from cost_models.errors import CostModelError
from cost_models.hardware import load
from cost_models.ops import messages_seconds, op_seconds, scattered_seconds, split_seconds

EULER = 0.5772156649
"""The mean of Gumbel's distribution."""


@pytest.mark.parametrize("ranks", [0, -3, 1.5])
def test_a_host_has_a_whole_number_of_ranks(ranks: Any) -> None:
    for ask in (load("cpu").device_shared_by, load("h100").filled):
        with pytest.raises(CostModelError, match=f"The ranks of a host are {ranks}, not a whole"):
            ask(ranks)


def test_an_operator_goes_forward_or_backward() -> None:
    sideways: Any = "sideways"
    with pytest.raises(CostModelError, match="'sideways' is not a direction"):
        op_seconds(1.0, 1.0, "float32", load("cpu").device, "addmm", sideways)


@pytest.mark.parametrize("ranks", [0, -1, 1.5])
def test_a_whole_number_of_ranks_sends(ranks: Any) -> None:
    link = load("h100").inter_host
    for ask in (lambda: link.among(ranks), lambda: link.sending(1.0, ranks)):
        with pytest.raises(CostModelError, match=f"The ranks that send are {ranks}, not a whole"):
            ask()


@pytest.mark.parametrize("nbytes", [-5.0, float("nan")])
def test_a_message_has_bytes(nbytes: float) -> None:
    with pytest.raises(CostModelError, match=f"A message of {nbytes} bytes makes no sense"):
        load("h100").inter_host.sending(nbytes, 2)


@pytest.mark.parametrize("nbytes", [-5.0, float("nan")])
def test_a_ring_has_bytes(nbytes: float) -> None:
    with pytest.raises(CostModelError, match=f"all_reduce of {nbytes} bytes makes no sense"):
        ring_terms("all_reduce", nbytes, 2)


def test_an_axis_is_asked_about_a_collective() -> None:
    with pytest.raises(CostModelError, match="Unknown collective 'nonsense'; known are all_reduce"):
        axis_link(load("h100"), 1, 8, "nonsense")


@pytest.mark.parametrize("ranks", [10**17, 10**400])
def test_no_machine_has_so_many_ranks(ranks: int) -> None:
    with pytest.raises(CostModelError, match="The ranks are more than 1,000,000,000"):
        lateness(ranks)


def test_of_very_many_ranks_the_last_comes_as_extremes_do() -> None:
    """A billion normal delays: their expected maximum by the limit of Fisher and Tippett (1928)."""
    deviations = math.sqrt(2 * math.log(10**9))
    shift = math.log(math.log(10**9)) + math.log(4 * math.pi) - 2 * EULER
    latest = deviations - shift / (2 * deviations)
    assert lateness(10**9) == pytest.approx(latest / NormalDist().inv_cdf(1.625 / 2.25), rel=0.01)


@pytest.mark.thorough
def test_what_is_counted_is_whole() -> None:
    device = load("cpu").device
    for ask in (
        lambda: split_seconds(1.5, device),  # type: ignore[arg-type]
        lambda: messages_seconds(1.5, device),  # type: ignore[arg-type]
        lambda: scattered_seconds(8.0, device, 1.5),  # type: ignore[arg-type]
    ):
        with pytest.raises(CostModelError, match=r"There cannot be 1\.5 .*: they are whole"):
            ask()


def test_an_axis_fits_into_its_mesh() -> None:
    with pytest.raises(
        CostModelError, match="An axis of 8 ranks, 1 from one to the next, does not"
    ):
        axis_link(load("cpu"), 1, 8, "all_reduce", 3)


def test_work_has_an_end() -> None:
    with pytest.raises(CostModelError, match="An operator cannot do inf operations"):
        op_seconds(math.inf, 1.0, "float32", load("cpu").device)
