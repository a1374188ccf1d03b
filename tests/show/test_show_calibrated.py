"""What a calibration prints: every fit, and how far its line is off at every size."""

from __future__ import annotations

from dataclasses import replace

from autopar.show import to_text
from autopar.show.calibrated import links
from cost_models.hardware import Fit, load


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
