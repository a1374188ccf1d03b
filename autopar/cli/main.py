"""The console script: what the shell completes is answered here, without torch; all else by autopar."""

from __future__ import annotations

import os

PROGRAM, ASKED = "autopar", "_AUTOPAR_COMPLETE"
INTERRUPTED = 130
"""Shells give this code to what Ctrl-C has ended."""


def main() -> None:
    """Complete a word where the shell asks for it, or run the command."""
    if os.environ.get(ASKED, "").startswith("complete_"):
        from autopar.cli.completion.listed import listed

        listed()(prog_name=PROGRAM, complete_var=ASKED)
    else:
        try:
            from autopar.cli.app import main as command
        except KeyboardInterrupt:  # imports take a second, in which nothing is there to handle it
            raise SystemExit(INTERRUPTED) from None
        command()
