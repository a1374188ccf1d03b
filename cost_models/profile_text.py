"""Reads and writes hardware profiles as TOML text; `parse` is the inverse of `to_text`."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, asdict, fields, replace
from typing import Any, TypeVar

from cost_models.curves import Curve
from cost_models.errors import ProfileError
from cost_models.fits import Fit
from cost_models.machine import Device, Hardware, Link, Share, Tier
from cost_models.modes import Mode
from cost_models.shapes import ShapeEfficiency

Value = TypeVar("Value", Curve, Device, Fit, Link, Mode, ShapeEfficiency, Share, Tier)

SHAPED = ("products", "attention")
"""Tables of a device that give an efficiency by shape."""
_REMEDY = "Correct it, or measure a new profile with `autopar calibrate -o mine.toml`."
_CURVE = "tuple[tuple[float, float], ...]"
_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "float": (int, float),
    "float | None": (int, float),
    "bool | None": (bool,),
    "ShapeEfficiency | None": (dict,),
    "Mapping[str, float]": (dict,),
    "tuple[Fit, ...]": (list,),
    "tuple[Curve, ...]": (list,),
    "Points": (list,),
    _CURVE: (list,),
}
_WORDS = {
    "str": "text",
    "int": "a whole number",
    "bool": "true or false",
    "float": "a number",
    "float | None": "a number",
    "bool | None": "true or false",
    "tuple[Fit, ...]": "a list of tables",
    "tuple[Curve, ...]": "a list of tables",
    "Points": "a list of pairs of bytes and shares",
    _CURVE: "a list of pairs of bytes and seconds",
}


def parse(text: str, source: str) -> Hardware:
    """Parse a profile's text; errors name `source`, the key and what to do."""
    data = _table_of(text, source)
    try:
        hardware = _hardware(data)
        hardware.check()
    except ProfileError as error:
        raise ProfileError(f"{source}: {error} {_REMEDY}") from None
    return hardware


def _table_of(text: str, source: str) -> dict[str, Any]:
    """Parse TOML; Python also fails on numbers of thousands of digits and on deeply nested lists."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"{source} is not TOML: {error}. {_REMEDY}") from None


def to_text(hardware: Hardware) -> str:
    """Return the profile as TOML."""
    return "\n".join(_lines(hardware)) + "\n"


def digest(hardware: Hardware) -> str:
    """Return a digest of all numbers, as twelve hex digits."""
    return hashlib.sha256(to_text(hardware).encode()).hexdigest()[:12]


def _hardware(data: Mapping[str, Any]) -> Hardware:
    _check_type(data.get("tiers", []), "tuple[Fit, ...]", "tiers")
    known = {"device", "intra_host", "inter_host", "shared", "tiers", "modes"}
    flat = {key: value for key, value in data.items() if key not in known}
    described = [f for f in fields(Hardware) if f.name not in known]
    return Hardware(
        device=_device(_table(data, "device")),
        intra_host=_link(_table(data, "intra_host"), "intra_host"),
        inter_host=_link(_table(data, "inter_host"), "inter_host"),
        shared={
            _ranks(ranks): _value(
                Share, _table(data["shared"], ranks, "shared."), f"shared.{ranks}"
            )
            for ranks in (_table(data, "shared") if "shared" in data else {})
        },
        tiers=tuple(_values(Tier, data.get("tiers", []), "tiers")),
        modes={
            name: _value(Mode, _table(data["modes"], name, "modes."), f"modes.{name}")
            for name in (_table(data, "modes") if "modes" in data else {})
        },
        **_checked(described, flat, ""),
    )


def _device(data: Mapping[str, Any]) -> Device:
    device = _value(Device, data, "device")
    for dtype, peak in device.flops_per_s.items():
        _check_type(peak, "float", f"device.flops_per_s.{dtype}")
    curves = _values(Curve, device.curves, "device.curves")
    shaped = {
        key: _value(ShapeEfficiency, data[key], f"device.{key}") for key in SHAPED if key in data
    }
    return replace(
        device,
        curves=tuple(map(_curve, curves)),
        products=shaped.get("products"),
        attention=shaped.get("attention"),
    )


def _curve(curve: Curve) -> Curve:
    """Convert a curve's points to pairs."""
    return replace(
        curve,
        forward=_pairs(curve.forward, "device.curves.forward"),
        backward=_pairs(curve.backward, "device.curves.backward"),
    )


def _link(data: Mapping[str, Any], where: str) -> Link:
    link = _value(Link, data, where)
    return replace(link, fits=tuple(map(_fit, _values(Fit, link.fits, f"{where}.fits"))))


def _fit(fit: Fit) -> Fit:
    """Convert a fit's curve to pairs."""
    return replace(fit, curve=_pairs(fit.curve, "fits.curve"))


def _pairs(points: Iterable[Any], key: str) -> tuple[tuple[float, float], ...]:
    """Convert points to pairs of numbers."""
    for pair in points:
        if not (isinstance(pair, list) and len(pair) == 2):
            raise ProfileError(f"{key} holds {pair!r}, not a pair of numbers.")
        for value in pair:
            _check_type(value, "float", key)
    return tuple((one, other) for one, other in points)


def _values(kind: type[Value], tables: Any, where: str) -> Iterator[Value]:
    """Convert each table of a list to a value of class `kind`."""
    for index, table in enumerate(tables):
        _check_type(table, "Mapping[str, float]", f"{where}[{index}]")
        yield _value(kind, table, f"{where}[{index}]")


def _value(kind: type[Value], data: Mapping[str, Any], where: str) -> Value:
    return kind(**_checked(list(fields(kind)), data, f"{where}."))


def _checked(known: list[Field[Any]], data: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the table's values after checking that each key is known and each value has its type."""
    known = [f for f in known if not f.metadata.get("derived")]
    names = [f.name for f in known]
    for key in data:
        if key not in names:
            raise ProfileError(f"The key {where}{key} is unknown; known are {', '.join(names)}.")
    for f in known:
        if f.name in data:
            _check_type(data[f.name], str(f.type), where + f.name)
        elif f.default is MISSING and f.default_factory is MISSING:
            raise ProfileError(f"The key {where}{f.name} is missing.")
    return dict(data)


def _check_type(value: Any, wanted: str, key: str) -> None:
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        raise ProfileError(f"{key} is beyond {sys.float_info.max:.2g}.")
    if isinstance(value, bool) != wanted.startswith("bool") or not isinstance(
        value, _TYPES[wanted]
    ):
        raise ProfileError(f"{key} is {value!r}, not {_WORDS.get(wanted, 'a table')}.")


def _table(data: Mapping[str, Any], key: str, where: str = "") -> Mapping[str, Any]:
    if key not in data:
        raise ProfileError(f"The table [{where}{key}] is missing.")
    _check_type(data[key], "Mapping[str, float]", where + key)
    table: Mapping[str, Any] = data[key]
    return table


def _ranks(key: str) -> int:
    if not (key.isdecimal() and len(key) < 10):
        raise ProfileError(f"The table [shared.{key}] must be named for a number of ranks.")
    return int(key)


def _lines(hardware: Hardware) -> Iterator[str]:
    for key in ("source", "date", "devices_per_host", "cores"):
        yield _line(key, getattr(hardware, key))
    if hardware.chosen_from != ("ring",):
        yield _line("algorithms", hardware.algorithms)
    device = asdict(hardware.device)
    flops_per_s, curves = device.pop("flops_per_s"), device.pop("curves")
    shaped = {key: device.pop(key) for key in SHAPED}
    yield "\n[device]"
    yield from _known(device)
    yield "\n[device.flops_per_s]"
    yield from (_line(dtype, peak) for dtype, peak in flops_per_s.items())
    for key, values in shaped.items():
        if values is not None:
            yield f"\n[device.{key}]"
            yield from (_line(name, value) for name, value in values.items())
    for curve in curves:
        yield "\n[[device.curves]]"
        yield from (_line(key, value) for key, value in curve.items())
    for name, link in (("intra_host", hardware.intra_host), ("inter_host", hardware.inter_host)):
        yield f"\n[{name}]"
        yield _line("bytes_per_s", link.bytes_per_s)
        yield _line("latency_s", link.latency_s)
        yield _line("kind", link.kind)
        if link.alone_bytes_per_s:
            yield _line("alone_bytes_per_s", link.alone_bytes_per_s)
        if link.neighbours:
            yield _line("neighbours", link.neighbours)
        if link.at_least:
            yield _line("at_least", link.at_least)
        if link.overlap is not None:
            yield _line("overlap", link.overlap)
        for fit in link.fits:
            yield f"\n[[{name}.fits]]"
            yield from (
                _line(key, v) for key, v in asdict(fit).items() if v != () and v is not False
            )
    for tier in hardware.tiers:
        yield "\n[[tiers]]"
        yield from (_line(key, value) for key, value in asdict(tier).items())
    for ranks, share in hardware.shared.items():
        yield f"\n[shared.{ranks}]"
        yield from _known(asdict(share))
    for name, mode in hardware.modes.items():
        yield f"\n[modes.{_key(name)}]"
        yield from (_line(key, v) for key, v in asdict(mode).items() if v is not None)


def _key(name: str) -> str:
    """Return a table's name, quoted unless TOML takes it bare."""
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else json.dumps(name)


def _known(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a device's numbers; those that few profiles have only if they are not the
    default."""
    for key, value in values.items():
        if key == "lays_out" and value:
            continue
        if value or key not in ("behind", "late_s", "issue_s", "expert_imbalance"):
            yield _line(key, value)


def _line(key: str, value: Any) -> str:
    if isinstance(value, str):
        # JSON's escapes are valid TOML, except that JSON does not escape the control character DEL.
        return f"{key} = " + json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return f"{key} = {str(value).lower()}"
    if isinstance(value, tuple):
        return f"{key} = [{', '.join(f'[{n!r}, {s!r}]' for n, s in value)}]"
    return f"{key} = {value!r}"
