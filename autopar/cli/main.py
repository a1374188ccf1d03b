"""The console script; handles requests that need no command without importing torch.

Importing the commands takes two seconds.  Shell completion, the version, the list of commands, and
errors about unknown commands or options are answered from `commands.json`.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from typing import Any

PROGRAM, ASKED = "autopar", "_AUTOPAR_COMPLETE"
INTERRUPTED = 130
"""Exit code that shells use for processes ended by Ctrl-C."""
HELP, VERSION, DEBUG = "--help", "--version", "--debug"


def main() -> None:
    """Complete a word if the shell requests it, else run the command."""
    try:
        if os.environ.get(ASKED, "").startswith("complete_"):
            _listed(complete_var=ASKED)
        elif sys.argv[1:] == [VERSION]:
            print(f"{PROGRAM} {version(PROGRAM)}")
        elif sys.argv[1:] in ([], [HELP]):
            _listed()
        else:
            if HELP not in sys.argv and VERSION not in sys.argv:
                _check_words()
            from autopar.cli.app import main as command

            command()
    except KeyboardInterrupt:  # during imports, which take a second, no handler is installed yet
        raise SystemExit(INTERRUPTED) from None


def _check_words() -> None:
    """Exit with an error message if a command, an option or a value is invalid.

    ``--debug`` may be anywhere on the line.  With it, the command itself reports invalid values, so that
    their tracebacks are printed.
    """
    from autopar.errors import AutoparError
    from cost_models.errors import CostModelError

    try:
        _listed(args=[word for word in sys.argv[1:] if word != DEBUG])
    except SystemExit as end:
        if end.code:
            raise
    except (AutoparError, CostModelError) as error:
        if DEBUG not in sys.argv:
            from autopar.cli.complaint import complain

            complain(str(error))
            raise SystemExit(1) from None


def _listed(**options: Any) -> None:
    """Run the application of `commands.json`, whose commands only check their values."""
    from autopar.cli.completion.listed import listed

    listed()(prog_name=PROGRAM, **options)
