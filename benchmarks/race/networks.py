"""The three networks of the race, and the profile that a calibration finds in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from namespaces import launch
from racks import joined

LIMIT_S = 1500.0
GIGABIT = "1gbit"
PREFERRED = str(Path(__file__).parent / "preferred.py")


@dataclass(frozen=True)
class Network:
    """`racks`: hosts of each; a rank is on every host, or `per_host` on the only one."""

    name: str
    says: str
    racks: tuple[int, ...]
    per_host: int = 1
    rate: str = GIGABIT
    between: str = ""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Ranks of each rack."""
        return tuple(hosts * self.per_host for hosts in self.racks)

    def run(self, script: Sequence[str]) -> None:
        """On every rank, under torchrun; the hosts are made, and gone afterwards."""
        with joined(self.racks, self.rate, self.between) as hosts:
            launch(hosts, self.per_host, [PREFERRED, *script], LIMIT_S)

    def calibrate(self, profile: Path) -> None:
        """Measure it as it is; racks are groups, whose inner links are faster than what joins them."""
        words = ["-m", "autopar", "calibrate", "-o", str(profile)]
        if len(self.racks) > 1:
            words += ["--group", str(self.racks[0])]
        self.run(words)


NETWORKS: Mapping[str, Network] = MappingProxyType(
    {
        network.name: network
        for network in (
            Network("shared", "shared memory, 2 ranks", (1,), per_host=2),
            Network("two", "two hosts at 1 Gbit/s", (2,)),
            Network(
                "four", "four hosts at 1 Gbit/s in two racks joined at 200 Mbit/s", (2, 2),
                between="200mbit",
            ),
        )
    }
)  # fmt: skip
