"""Timeouts between ranks, from environment variables."""

from __future__ import annotations

import os

from autopar.errors import InputError


def timeout_s() -> float:
    """Return the seconds that ranks wait for each other in a collective, or before a call of autopar."""
    return _seconds("AUTOPAR_TIMEOUT_S", 600.0, least=1.0)


def heartbeat_s() -> float:
    """Return the seconds a rank may be stopped (SIGSTOP) before the others end; 0 disables the check."""
    return _seconds("AUTOPAR_HEARTBEAT_S", 60.0, least=0.0)


def stall_s() -> float:
    """Return the seconds until a rank waiting in a step looks for one waiting elsewhere; 0: never."""
    return _seconds("AUTOPAR_STALL_S", 20.0, least=0.0)


def _seconds(name: str, default: float, least: float) -> float:
    said = os.environ.get(name)
    if said is None:
        return default
    try:
        seconds = float(said)
    except ValueError:
        seconds = -1.0
    if not least <= seconds < float(10**9):
        raise InputError(
            f"{name}={said!r} is not a number of seconds: set it to {least:g} or more."
        )
    return seconds
