"""What a calibration prints: every fit, and how far its line is off at every size."""

from __future__ import annotations

from dataclasses import replace

from autopar.render.text import to_text
from autopar.render.text.calibrated import links
from cost_models.hardware import Fit, Link, load


def test_each_fit_stands_with_its_residuals() -> None:
    h100 = load("h100")
    fit = Fit(
        "all_reduce", 4, 1e-3, 2**20 * 1e3, host_ranks=8, curve=((2**10, 1e-3), (2**20, 4e-3))
    )
    text = to_text(links(replace(h100, intra_host=replace(h100.intra_host, fits=(fit,)))), 140)
    (line,) = (line for line in text.splitlines() if "all_reduce" in line)
    assert line.split()[:3] == ["all_reduce", "4", "8"]
    assert "1.0 ms" in line and "1000.0 MiB" in line
    assert "+0% at 1.0 KiB, -50% at 1.0 MiB" in line
    assert "inside a host" in text and "between hosts" in text and h100.inter_host.kind in text
    assert "at least" not in text


def test_messages_stand_with_their_residuals() -> None:
    """Those that were sent; elsewhere what the ring formula is off by, the median of all collectives."""
    h100 = load("h100")
    each = ((2**10, 1e-3), (2**20, 4e-3))
    sent = Fit("send", 2, 1e-3, 2**20 * 1e3, host_ranks=8, curve=each)
    ring = Link(2**20 * 500.0, 1e-3, (Fit("all_gather", 2, 2.0, 1.0, curve=each),))
    text = to_text(
        links(replace(h100, intra_host=replace(h100.intra_host, fits=(sent,)), inter_host=ring)),
        140,
    )
    first, second = (line for line in text.splitlines() if "messages" in line)
    assert "messages 2 8 1.0 ms 1000.0 MiB +0% at 1.0 KiB, -50% at 1.0 MiB" in " ".join(
        first.split()
    )
    assert "rings of all: +0% at 1.0 KiB, -50% at 1.0 MiB" in second


def test_a_rate_that_is_only_a_bound_is_called_one() -> None:
    h100 = load("h100")
    fit = Fit("all_reduce", 2, 1e-3, 2**20, curve=((2**10, 1e-3),), at_least=True)
    text = to_text(links(replace(h100, intra_host=replace(h100.intra_host, fits=(fit,)))), 140)
    (line,) = (line for line in text.splitlines() if "all_reduce" in line)
    assert "at least 1.0 MiB" in line
    assert "what the largest message proves; measure larger ones, without --quick" in " ".join(
        text.split()
    )
