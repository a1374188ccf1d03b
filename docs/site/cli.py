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

Behind every command `--help` says the same, with an example, and `--debug` shows the traceback of an
error. The exit code is 0, or 1 for what a message explains, or 2 for words that cannot be read.
What a command writes goes into a folder that is there; `emit` and `frontier` make the one that they are
given.
Errors name what you passed by its flag.

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
