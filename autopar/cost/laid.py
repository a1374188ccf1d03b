"""Prices local copies: packing and unpacking of collective messages, and conversions that only copy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autopar.cost.calls import calls_of
from autopar.cost.compressed_traffic import compressing_seconds
from autopar.cost.issued import Copied, Sent
from autopar.cost.prices import Prices, is_sum
from autopar.ir.conversion import Direction, Traffic


@dataclass(frozen=True, slots=True)
class Laid:
    """Seconds of copies before collectives, after them, or instead of them."""

    forward_s: float = 0.0
    backward_s: float = 0.0

    @property
    def total_s(self) -> float:
        """The seconds of both directions."""
        return self.forward_s + self.backward_s

    def __add__(self, other: Laid) -> Laid:
        return Laid(self.forward_s + other.forward_s, self.backward_s + other.backward_s)


def laid_once(of_parameters: Sequence[Sequence[Traffic]], prices: Prices, shares: int) -> Laid:
    """Return the copies of parameters once per step, and the compression of their gradients.

    Buckets are copied as a whole, except that each gradient is copied into its bucket separately.
    """
    others = [part for sent in of_parameters for part in sent if not is_sum(part)]
    copied = _copied(calls_of(others, shares), prices)
    sums = ([part for part in sent if is_sum(part)] for sent in of_parameters)
    compressing_s = sum(compressing_seconds(sent, prices) for sent in of_parameters)
    return copied + Laid(backward_s=sum(map(prices.gradient, sums)) + compressing_s)


def laid_at_use(of_microbatch: Iterable[Sent], prices: Prices) -> Laid:
    """Return the copies for all collectives of a microbatch."""
    others = [sent.traffic for sent in of_microbatch if not sent.gradients]
    sums = [sent for sent in of_microbatch if sent.gradients]
    gradients_s = sum(prices.gradients(sent.traffic, sent.gradients) for sent in sums)
    return _copied(others, prices) + Laid(backward_s=gradients_s)


def laid_alone(copies: Iterable[Copied], prices: Prices) -> Laid:
    """Return the slices and zero fills of a microbatch's conversions that send nothing."""
    return _by_direction((each.copy.direction, prices.local(each.copy)) for each in copies)


def _copied(calls: Iterable[Traffic], prices: Prices) -> Laid:
    return _by_direction((call.direction, prices.copied(call)) for call in calls)


def _by_direction(parts: Iterable[tuple[Direction, float]]) -> Laid:
    spent = {"forward": 0.0, "backward": 0.0}
    for direction, seconds in parts:
        spent[direction] += seconds
    return Laid(spent["forward"], spent["backward"])
