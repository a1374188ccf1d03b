"""What messages call an argument on the command line: ``--stages 1+3`` for ``stages=[1, 3]``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from autopar.utils.messages import Wording

RENAMED = {"cuts": "--cut", "memory_limit": "--memory", "constraints": "--constraint"}
"""Arguments whose flags are called otherwise."""
RETURNED = {
    "example_inputs": "example_inputs (second of what MODEL returns)",
    "loss": "loss (third of what MODEL returns)",
}
"""What comes with the model, and has no flag."""


class Flags(Wording):
    """What is asked for by flags."""

    def named(self, name: str) -> str:
        """The flag, or where else it comes from."""
        return RETURNED.get(name) or RENAMED.get(name) or f"--{name.replace('_', '-')}"

    def given(self, name: str, value: object) -> str:
        """The flag and its words."""
        if name == "stages":
            return f"{self.named(name)} {_stages(value)}"
        if value is True:
            return self.named(name)
        return f"{self.named(name)} {self.quoted(value)}"

    def quoted(self, value: object) -> str:
        """As a shell would read it."""
        return shlex.quote(str(value))

    def of_python(self, text: str) -> str:
        """Nothing."""
        return ""


def _stages(value: object) -> str:
    """As `autopar.cli.stages.read_stages` reads it."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        return str(value)
    return "+".join(
        "x".join(map(str, shape)) if isinstance(shape, Sequence) else str(shape) for shape in value
    )
