"""Writes docs/cli.md, the reference of the command line, from the commands themselves.

    python docs/site/cli.py docs/cli.md

It is what ``python -m typer autopar.cli.app utils docs`` writes, with fences that the tests of the
documentation know.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from typer.cli import app as typer
from typer.testing import CliRunner

HEAD = """\
<!-- written by python docs/site/cli.py docs/cli.md -->

# The command line

`autopar COMMAND --help` prints the text below, with an example. `--debug` shows an error's traceback.
The exit code is 0 on success, 1 if a message explains the failure, and 2 for arguments that cannot be
read. Output files go into an existing folder; `emit` and `frontier` create the folder that you name.
Errors name the flag of the argument that they are about.

"""


def page() -> str:
    """The whole page."""
    words = ["autopar.cli.app", "utils", "docs", "--name", "autopar"]
    done = CliRunner().invoke(typer, words, catch_exceptions=False)
    text = done.stdout.replace("```console\n$ ", "```text\n")
    text = re.sub(r"^# `autopar`\n+", "", text)
    text = re.sub(r"^## `(.*)`$", r"## \1", text, flags=re.MULTILINE)
    return HEAD + text.strip() + "\n\n<!-- until here -->\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
