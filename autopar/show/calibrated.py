"""What a calibration found of links: a line through each collective's times, and how far off it is."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from autopar.show.table import row, table
from autopar.show.units import nbytes, seconds
from cost_models.hardware import Fit, Hardware


def links(hardware: Hardware) -> Table:
    """One line per link and collective; of each measured size, the line's error.

    Plans are priced by what was measured, and between sizes on straight lines; the line through all
    says what the link is like, and serves numbers of ranks that nobody measured.
    """
    columns = ("ranks", "busy", "latency", "per second")
    made = table("links", "link", "what", *columns, "line off by", right=columns)
    made.columns[-1].no_wrap = False
    for name, link in (
        ("inside a host", hardware.intra_host),
        ("between hosts", hardware.inter_host),
    ):
        figures = seconds(link.latency_s), nbytes(link.bytes_per_s)
        row(made, name, "messages", "2", "", *figures, link.kind)
        for fit in link.fits:
            _line(made, fit)
    return made


def _line(made: Table, fit: Fit) -> None:
    row(made, "", fit.collective, str(fit.ranks), str(fit.host_ranks or fit.ranks),
        seconds(fit.latency_s), nbytes(fit.bytes_per_s), ", ".join(residuals(fit)))  # fmt: skip


def residuals(fit: Fit) -> Iterator[str]:
    """``+3% at 1.0 KiB`` for each size that was measured."""
    for size, measured_s in fit.curve:
        line_s = fit.latency_s + size / fit.bytes_per_s
        yield f"{line_s / measured_s - 1:+.0%} at {nbytes(size)}"
