"""Renders calibrated links: the line fitted to each collective's times, and its errors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from statistics import median

from rich.table import Table

from autopar.ir.units import nbytes, seconds
from autopar.render.text.table import row, table
from cost_models.collectives import ring_terms
from cost_models.hardware import Fit, Hardware, Link

BOUND = (
    "at least: times did not rise with the bytes, so it is what the largest message proves; measure "
    "larger ones, without --quick"
)


def links(hardware: Hardware) -> Table:
    """Return a table with one line per link and collective, with the fit's error at each measured size.

    Plans are priced by the measured times, and by linear interpolation between sizes.  The fitted line
    summarises the link, and is used for numbers of ranks that were not measured.
    """
    columns = ("ranks", "busy", "latency", "per second")
    made = table("links", "link", "what", *columns, "line off by", right=columns)
    made.columns[-1].no_wrap = False
    every = {"inside a host": hardware.intra_host, "between hosts": hardware.inter_host}
    for name, link in every.items():
        _messages(made, f"{name}, {link.kind}" if link.kind else name, link)
        for fit in link.fits:
            if fit.collective != "send":
                _line(made, "", fit.collective, fit)
    if any(link.at_least or any(f.at_least for f in link.fits) for link in every.values()):
        made.caption, made.caption_justify = BOUND, "left"
    return made


def _messages(made: Table, name: str, link: Link) -> None:
    """Add the fit of point-to-point messages, or else the link with the ring formula's errors."""
    sent = next((fit for fit in link.fits if fit.collective == "send"), None)
    if sent is not None:
        _line(made, name, "messages", sent)
        return
    off = ", ".join(ring_residuals(link))
    row(made, name, "messages", "" if off else "2", "", seconds(link.latency_s), _rate(link),
        f"rings of all: {off}" if off else "")  # fmt: skip


def _line(made: Table, name: str, what: str, fit: Fit) -> None:
    row(made, name, what, str(fit.ranks), str(fit.host_ranks or fit.ranks),
        seconds(fit.latency_s), _rate(fit), ", ".join(residuals(fit)))  # fmt: skip


def _rate(one: Fit | Link) -> str:
    return f"at least {nbytes(one.bytes_per_s)}" if one.at_least else nbytes(one.bytes_per_s)


def residuals(fit: Fit) -> Iterator[str]:
    """Yield the fit's error at each measured size, such as ``+3% at 1.0 KiB``."""
    for size, measured_s in fit.curve:
        line_s = fit.latency_s + size / fit.bytes_per_s
        yield f"{line_s / measured_s - 1:+.0%} at {nbytes(size)}"


def ring_residuals(link: Link) -> Iterator[str]:
    """Yield the errors of the ring formula with the link's figures: the median over all collectives."""
    off: defaultdict[float, list[float]] = defaultdict(list)
    for fit in link.fits:
        for size, measured_s in fit.curve:
            messages, sent = ring_terms(fit.collective, size, fit.ranks)
            ring_s = messages * link.latency_s + sent / link.bytes_per_s
            off[size].append(ring_s / measured_s - 1)
    for size, each in sorted(off.items()):
        yield f"{median(each):+.0%} at {nbytes(size)}"
