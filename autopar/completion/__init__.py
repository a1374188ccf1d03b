"""The console script: what the shell completes is answered here, without torch; all else by autopar."""

from __future__ import annotations

import os

PROGRAM, ASKED = "autopar", "_AUTOPAR_COMPLETE"


def main() -> None:
    """Complete a word where the shell asks for it, or run the command."""
    if os.environ.get(ASKED, "").startswith("complete_"):
        from autopar.completion.listed import listed

        listed()(prog_name=PROGRAM, complete_var=ASKED)
    else:
        from autopar.cli import main as command

        command()
