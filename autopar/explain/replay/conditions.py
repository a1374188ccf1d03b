"""Conditions of a replay: other bandwidths, another number of microbatches, slow ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from autopar.errors import InputError
from autopar.utils.messages import argument

LINKS = ("intra_host", "inter_host")
MOST_MICROBATCHES = 4096
"""Limit of microbatches; each stage's actions are simulated one by one, so more would exhaust memory."""
LEAST, MOST = 1e-3, 1e3
"""Range of factors; beyond it the replay is of another machine, which needs a profile of its own."""


@dataclass(frozen=True)
class Conditions:
    """Changes to the planned conditions.

    `bandwidth` are factors on the bandwidth of mesh axes or links, by name; `stragglers` are factors on
    a rank's compute time.
    """

    bandwidth: Mapping[str, float] = field(default_factory=dict)
    microbatches: int | None = None
    stragglers: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        bandwidth: Iterable[str] = (),
        microbatches: int | None = None,
        stragglers: Iterable[str] = (),
    ) -> Conditions:
        """Parse bandwidths such as ``node=0.5x`` and stragglers such as ``3=1.2x``.

        Raises `InputError` if a text is malformed or a name occurs twice.
        """
        slow = _factors("straggler", stragglers, "3=1.2x")
        for name in slow:
            if not name.isdecimal():
                raise InputError(
                    f"There is no rank {name!r} for {argument('straggler')}: ranks are whole numbers "
                    "from 0, as in 3=1.2x."
                )
        ranks = {int(name): factor for name, factor in slow.items()}
        return cls(_factors("bandwidth", bandwidth, "node=0.5x"), microbatches, ranks)

    def check(self, axes: Iterable[str], world: int) -> None:
        """Raise `InputError` for unknown axes, links or ranks, and for numbers out of range."""
        if self.microbatches is not None and self.microbatches > MOST_MICROBATCHES:
            raise InputError(
                f"A step of {self.microbatches} microbatches is too long to simulate: pass "
                f"{MOST_MICROBATCHES} at most."
            )
        for what, factors in (("bandwidth of", self.bandwidth), ("pace of rank", self.stragglers)):
            for name, factor in factors.items():
                if not LEAST <= factor <= MOST:
                    raise InputError(
                        f"The {what} {name} cannot be x{factor:g}: write a factor above 0, "
                        f"from {LEAST:g} to {MOST:g}."
                    )
        known = (*dict.fromkeys(axes), *LINKS)
        for name in self.bandwidth:
            if name not in known:
                raise InputError(
                    f"No axis or link is called {name!r}: there are {', '.join(known)}."
                )
        for rank in self.stragglers:
            if rank >= world:
                raise InputError(f"There is no rank {rank}: the mesh has {world}, from 0.")

    def slowest(self, ranks: Iterable[int]) -> float:
        """Return the straggler factor of the slowest of these ranks."""
        return max((self.stragglers.get(rank, 1.0) for rank in ranks), default=1.0)

    def __str__(self) -> str:
        said = [f"bandwidth of {name} x{factor:g}" for name, factor in self.bandwidth.items()]
        if self.microbatches is not None:
            said.append(f"{self.microbatches} microbatches")
        said += [f"rank {rank} {_pace(factor)}" for rank, factor in self.stragglers.items()]
        return ", ".join(said) or "as planned"


AS_PLANNED = Conditions()


def _pace(factor: float) -> str:
    """Return ``x1.5 slower`` or, for a factor of 0.5, ``x2 faster``."""
    return f"x{factor:g} slower" if factor >= 1 else f"x{1 / factor:.3g} faster"


def _factors(flag: str, texts: Iterable[str], example: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for text in texts:
        name, _, said = (part.strip() for part in text.partition("="))
        try:
            factor = float(said.removesuffix("x").removesuffix("X"))
        except ValueError:
            name = ""
        if not name:
            raise InputError(f"Cannot read {argument(flag, text)}: write {example}.")
        if name in found:
            raise InputError(f"{argument(flag)} names {name!r} twice.")
        found[name] = factor
    return found
