"""Formats arguments in messages as flags: ``--stages 1+3`` for ``stages=[1, 3]``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from autopar.utils.messages import Wording

RENAMED = {"cuts": "--cut", "memory_limit": "--memory", "constraints": "--constraint",
           "virtual": "--vp"}  # fmt: skip
"""Flags whose names differ from those of their arguments."""
RETURNED = {
    "example_inputs": "example_inputs (second of what MODEL returns)",
    "loss": "loss (third of what MODEL returns)",
}
"""Descriptions of arguments that the model's factory returns, and that have no flag."""


class Flags(Wording):
    """The syntax of command line flags."""

    def named(self, name: str) -> str:
        """Return the flag, or the description of an argument that has none."""
        return RETURNED.get(name) or RENAMED.get(name) or f"--{name.replace('_', '-')}"

    def given(self, name: str, value: object) -> str:
        """Return the flag with its value."""
        if name == "stages":
            return f"{self.named(name)} {_stages(value)}"
        if value is True:
            return self.named(name)
        return f"{self.named(name)} {self.quoted(value)}"

    def quoted(self, value: object) -> str:
        """Return the value quoted for a shell."""
        return shlex.quote(str(value))

    def of_python(self, text: str) -> str:
        """Return an empty string."""
        return ""


def _stages(value: object) -> str:
    """Format stages as `autopar.cli.early.read_stages` parses them."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        return str(value)
    return "+".join(
        "x".join(map(str, shape)) if isinstance(shape, Sequence) else str(shape) for shape in value
    )
