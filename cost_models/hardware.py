"""Hardware profiles: what a device and its links can do, read from TOML, figures with their source."""

from __future__ import annotations

import difflib
import math
import os
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from cost_models.errors import ProfileError, UnknownHardwareError


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator, or one rank's share of a host's cores.

    `flops_per_s` is the peak by dtype name; the efficiencies are the share of the peak that large
    operators reach.  `launch_s` is spent on every operator call; `overlap` is the share of compute
    time under which communication can hide.
    """

    name: str
    kind: str
    memory_bytes: float
    flops_per_s: Mapping[str, float]
    bytes_per_s: float
    matmul_efficiency: float = 1.0
    memory_efficiency: float = 1.0
    launch_s: float = 0.0
    overlap: float = 0.0


@dataclass(frozen=True, slots=True)
class Fit:
    """Alpha and beta of one kind of collective among `ranks` ranks, fitted to measurements."""

    collective: str
    ranks: int
    latency_s: float
    bytes_per_s: float
    host_ranks: int = 0
    """How many ranks were busy on the host while it was measured; 0: just these."""


@dataclass(frozen=True, slots=True)
class Link:
    """What joins ranks: per direction and rank.  Fitted collectives override the ring formula."""

    bytes_per_s: float
    latency_s: float
    fits: tuple[Fit, ...] = ()

    def shared_by(self, ranks: int) -> Link:
        """The link while `ranks` ranks use the host: only the fits measured nearest to that."""
        nearest: dict[tuple[str, int], Fit] = {}
        for fit in self.fits:
            key = (fit.collective, fit.ranks)
            best = nearest.setdefault(key, fit)
            if abs(_busy(fit) - ranks) < abs(_busy(best) - ranks):
                nearest[key] = fit
        return replace(self, fits=tuple(nearest.values()))


@dataclass(frozen=True)
class Hardware:
    """A host of equal devices, the link inside it and the link between hosts.

    `shared` gives, per number of ranks that share the host, one rank's share of the device: ranks on
    one CPU slow each other down, GPUs do not.
    """

    device: Device
    devices_per_host: int
    intra_host: Link
    inter_host: Link
    source: str
    date: str
    shared: Mapping[int, Mapping[str, float]] = field(default_factory=dict)

    def check(self) -> None:
        """Raise `ProfileError` unless every figure is a positive, finite number."""
        figures = {
            "device.memory_bytes": self.device.memory_bytes,
            "device.bytes_per_s": self.device.bytes_per_s,
            "device.matmul_efficiency": self.device.matmul_efficiency,
            "device.memory_efficiency": self.device.memory_efficiency,
            "devices_per_host": self.devices_per_host,
            "intra_host.bytes_per_s": self.intra_host.bytes_per_s,
            "inter_host.bytes_per_s": self.inter_host.bytes_per_s,
            **{f"device.flops_per_s.{k}": v for k, v in self.device.flops_per_s.items()},
        }
        for key, value in figures.items():
            if not (math.isfinite(value) and value > 0):
                raise ProfileError(f"Profile {self.device.name!r}: {key} is {value}, not positive.")
        if not self.device.flops_per_s:
            raise ProfileError(f"Profile {self.device.name!r} has no device.flops_per_s.")

    def device_shared_by(self, local_ranks: int) -> Device:
        """The device as one of `local_ranks` ranks on a host sees it."""
        if not self.shared:
            return self.device
        known = max((n for n in self.shared if n <= local_ranks), default=min(self.shared))
        factors = self.shared[known]
        # Ranks beyond the measured count share what the measured ones had.
        crowd = max(1.0, local_ranks / known)
        return replace(
            self.device,
            flops_per_s={
                dtype: peak * factors["flops"] / crowd
                for dtype, peak in self.device.flops_per_s.items()
            },
            bytes_per_s=self.device.bytes_per_s * factors["bytes"] / crowd,
            launch_s=self.device.launch_s * factors.get("launch", 1.0) * crowd,
        )


def _busy(fit: Fit) -> int:
    return fit.host_ranks or fit.ranks


def names() -> tuple[str, ...]:
    """Every profile that comes with the package."""
    files = resources.files("cost_models").joinpath("profiles").iterdir()
    return tuple(sorted(f.name.removesuffix(".toml") for f in files if f.name.endswith(".toml")))


def load(name_or_path: str | Path) -> Hardware:
    """A profile by name, or from a TOML file."""
    path = Path(name_or_path)
    if path.suffix == ".toml":
        try:
            return parse(path.read_text(), str(path))
        except OSError as error:
            raise UnknownHardwareError(f"Cannot read the profile {path}: {error}.") from None
    if str(name_or_path) not in names():
        close = difflib.get_close_matches(str(name_or_path), names(), 1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise UnknownHardwareError(
            f"There is no hardware profile {str(name_or_path)!r}.{hint} Known: {', '.join(names())}. "
            "Measure your own with `autopar calibrate -o mine.toml` and pass that path."
        )
    text = resources.files("cost_models").joinpath("profiles", f"{name_or_path}.toml").read_text()
    return parse(text, f"profile {name_or_path}")


def parse(text: str, source: str) -> Hardware:
    """Read a profile's text; errors name `source` and the key."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(f"{source} is not TOML: {error}.") from None
    try:
        hardware = Hardware(
            device=Device(**data["device"]),
            devices_per_host=int(data["devices_per_host"]),
            intra_host=_link(data["intra_host"]),
            inter_host=_link(data["inter_host"]),
            source=str(data["source"]),
            date=str(data["date"]),
            shared={int(n): dict(v) for n, v in data.get("shared", {}).items()},
        )
        hardware.check()
    except KeyError as error:
        raise ProfileError(f"{source} lacks the key {error}.") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise ProfileError(f"{source}: {error}") from None
    return hardware


def _link(data: Mapping[str, Any]) -> Link:
    fits = tuple(Fit(**fit) for fit in data.get("fits", ()))
    return Link(float(data["bytes_per_s"]), float(data["latency_s"]), fits)


def to_text(hardware: Hardware) -> str:
    """The profile as TOML; `parse` reads it back."""
    device = asdict(hardware.device)
    flops = device.pop("flops_per_s")
    lines = [
        f'source = "{hardware.source}"',
        f'date = "{hardware.date}"',
        f"devices_per_host = {hardware.devices_per_host}",
        "\n[device]",
        *(f"{key} = {value!r}".replace("'", '"') for key, value in device.items()),
        "\n[device.flops_per_s]",
        *(f"{dtype} = {peak!r}" for dtype, peak in flops.items()),
    ]
    for name, link in (("intra_host", hardware.intra_host), ("inter_host", hardware.inter_host)):
        lines += [f"\n[{name}]", f"bytes_per_s = {link.bytes_per_s!r}"]
        lines += [f"latency_s = {link.latency_s!r}"]
        for fit in link.fits:
            lines += [f"\n[[{name}.fits]]"]
            lines += [f"{key} = {value!r}".replace("'", '"') for key, value in asdict(fit).items()]
    for ranks, factors in hardware.shared.items():
        lines += [f"\n[shared.{ranks}]", *(f"{k} = {v!r}" for k, v in factors.items())]
    return "\n".join(lines) + "\n"


def save(hardware: Hardware, path: str | Path) -> None:
    """Write a profile; an interrupted write leaves the old file whole."""
    hardware.check()
    target = Path(path)
    handle, temporary = tempfile.mkstemp(dir=target.parent, suffix=".toml.part")
    try:
        with os.fdopen(handle, "w") as stream:
            stream.write(to_text(hardware))
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def detect() -> str:
    """The profile of the machine at hand."""
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    found = torch.cuda.get_device_name(0).lower()
    for name in names():
        if name != "cpu" and name.split("_")[0] in found:
            return name
    raise UnknownHardwareError(
        f"No profile fits this machine's {torch.cuda.get_device_name(0)!r}. Pass hardware= with one of "
        f"{', '.join(names())}, or measure it: torchrun ... -m autopar.cli.calibrate -o mine.toml."
    )
