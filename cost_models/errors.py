"""What the cost models raise; each message says what to do next."""

from __future__ import annotations


class CostModelError(ValueError):
    """Base of every error of this package."""


class UnknownHardwareError(CostModelError):
    """No profile has this name, or the machine at hand has none."""


class ProfileError(CostModelError):
    """A profile file is malformed."""
