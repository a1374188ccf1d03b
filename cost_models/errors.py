"""Errors of the cost models; each message says what to do next."""

from __future__ import annotations


class CostModelError(ValueError):
    """Base of every error of this package."""


class UnknownHardwareError(CostModelError):
    """No profile has this name, or none matches the local machine."""


class ProfileError(CostModelError):
    """A profile file is malformed."""
