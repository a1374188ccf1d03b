"""What a calibration found of links: a line through each collective's times, and how far off it is."""

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
    """One line per link and collective; of each measured size, the line's error.

    Plans are priced by what was measured, and between sizes on straight lines; the line through all
    says what the link is like, and serves numbers of ranks that nobody measured.
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
    """By the messages that were sent; else by what the ring formula makes of all collectives."""
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
    """``+3% at 1.0 KiB`` for each size that was measured."""
    for size, measured_s in fit.curve:
        line_s = fit.latency_s + size / fit.bytes_per_s
        yield f"{line_s / measured_s - 1:+.0%} at {nbytes(size)}"


def ring_residuals(link: Link) -> Iterator[str]:
    """The same of the ring formula with the link's own figures: the median over all collectives."""
    off: defaultdict[float, list[float]] = defaultdict(list)
    for fit in link.fits:
        for size, measured_s in fit.curve:
            messages, sent = ring_terms(fit.collective, size, fit.ranks)
            ring_s = messages * link.latency_s + sent / link.bytes_per_s
            off[size].append(ring_s / measured_s - 1)
    for size, each in sorted(off.items()):
        yield f"{median(each):+.0%} at {nbytes(size)}"
