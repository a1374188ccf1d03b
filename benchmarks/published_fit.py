"""Fits the constants of GPUs and of software on published steps, for predictions of sources left out.

Efficiencies are of a device, the host's time for an operator is of a mode.  What the rows say nothing
about stays where it was before any row was known (`BEFORE`); a device without rows has the efficiencies
of the device that has most.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np
from clusters import Simulator
from published_facts import PROFILES, Row, machine

from cost_models.hardware import Hardware

ROWS_OF_A_SOURCE = 8
"""So many rows of each source are fitted on, evenly spread over its table."""
ITERATIONS = 3
STEP = 0.04
"""Of a logarithm, for slopes."""
FAITH = 0.003
"""Weight of a constant's deviation from `BEFORE` by a factor of e, relative to all errors."""
TOLERATED = 0.04
"""Errors below count by their square, larger ones by their size: some rows were disturbed."""


@dataclass(frozen=True)
class Constants:
    """What is fitted: efficiencies of large products, of attention and of memory, and the host's
    seconds for an operator."""

    products: float
    attention: float
    memory: float
    host_s: float


BEFORE = Constants(0.6, 0.4, 0.8, 20e-6)
"""The profile's assumptions before; attention and the host from what is generally said."""


def shipped(hardware: Hardware) -> Constants:
    """The constants of a profile."""
    device = hardware.device
    assert device.products is not None and device.attention is not None
    return Constants(
        device.products.most,
        device.attention.most,
        device.memory_efficiency,
        device.issue_s or device.launch_s,
    )


def simulator(hardware: Hardware, constants: Constants) -> Simulator:
    """A machine with these constants."""
    device = hardware.device
    assert device.products is not None and device.attention is not None
    host = "issue_s" if device.issue_s else "launch_s"
    changed = replace(
        device,
        products=replace(device.products, most=min(1.0, constants.products)),
        attention=replace(device.attention, most=min(1.0, constants.attention)),
        memory_efficiency=min(1.0, constants.memory),
        **{host: constants.host_s},  # type: ignore[arg-type]
    )
    return Simulator(replace(hardware, device=changed))


def fitted(every: Sequence[Row]) -> dict[str, Constants]:
    """The constants of every machine, fitted on these rows."""
    of_device: defaultdict[str, list[Row]] = defaultdict(list)
    for row in _sample([row for row in every if row.seconds is not None]):
        of_device[_device(row.machine)].append(row)
    found = {name: _fit(training) for name, training in of_device.items()}
    most = max(of_device, key=lambda name: len(of_device[name]))
    made = {}
    for name in PROFILES:
        shared, hosts = found.get(_device(name), found[most])
        host_s = hosts.get(PROFILES[name]) or hosts.get("a100:megatron") or BEFORE.host_s
        if ":" not in PROFILES[name]:
            host_s = machine(name).device.launch_s
        made[name] = Constants(*shared, host_s)
    return made


def _device(name: str) -> str:
    return PROFILES[name].partition(":")[0]


def _sample(every: Sequence[Row]) -> list[Row]:
    """Some rows of each source."""
    of_source: defaultdict[str, list[Row]] = defaultdict(list)
    for row in every:
        of_source[row.table].append(row)
    found = []
    for members in of_source.values():
        stride = max(1, len(members) // ROWS_OF_A_SOURCE)
        found += members[::stride]
    return found


def _fit(training: Sequence[Row]) -> tuple[tuple[float, float, float], dict[str, float]]:
    """Efficiencies of a device, and the host's seconds by mode; every source has the same weight."""
    modes = sorted({PROFILES[row.machine] for row in training if ":" in PROFILES[row.machine]})
    count = {row.table: 0 for row in training}
    for row in training:
        count[row.table] += 1
    weights = np.array([1.0 / count[row.table] for row in training]) / len(count)

    def errors(theta: np.ndarray) -> np.ndarray:
        values = np.exp(theta)
        host = dict(zip(modes, values[3:], strict=True))
        made = {}
        for name in {row.machine for row in training}:
            hardware = machine(name)
            host_s = host.get(PROFILES[name], hardware.device.launch_s)
            made[name] = simulator(hardware, Constants(values[0], values[1], values[2], host_s))
        return np.array(
            [math.log(made[r.machine].predict(r).seconds / (r.seconds or 1.0)) for r in training]
        )

    start = np.log([*astuple(BEFORE)[:3], *[BEFORE.host_s] * len(modes)])
    values = np.exp(_least(errors, start, weights))
    most, attention, memory = (min(1.0, float(value)) for value in values[:3])
    return (most, attention, memory), dict(zip(modes, map(float, values[3:]), strict=True))


def _least(
    errors: Callable[[np.ndarray], np.ndarray], start: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Least errors by reweighted least squares (Gauss, Newton), near the start where they are flat."""
    theta = start
    for _ in range(ITERATIONS):
        here = errors(theta)
        moved = [errors(theta + step) for step in STEP * np.eye(len(theta))]
        slopes = (np.stack(moved, axis=1) - here[:, None]) / STEP
        pull = np.sqrt(weights / np.maximum(np.abs(here), TOLERATED))
        faith = math.sqrt(FAITH) * np.eye(len(theta))
        system = np.vstack([slopes * pull[:, None], faith])
        wanted = np.concatenate([-here * pull, math.sqrt(FAITH) * (start - theta)])
        theta = theta + np.clip(np.linalg.lstsq(system, wanted, rcond=None)[0], -0.7, 0.7)
    return theta
