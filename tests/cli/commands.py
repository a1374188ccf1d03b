"""Commands as a person runs them, in this process: what they print, and what they refuse."""

from __future__ import annotations

from transformers.utils import logging
from typer.testing import CliRunner, Result

from autopar.cli.app import app

# What is told once a process would be in one transcript, and not in the others.
logging.set_verbosity_error()


def run(*words: object) -> Result:
    """The command's result, whatever it is."""
    return CliRunner().invoke(app, [str(word) for word in words], prog_name="autopar")


def ok(*words: object) -> str:
    """What a command that succeeds prints."""
    result = run(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


def fails(*words: object, code: int = 1) -> str:
    """The message on stderr, on one line: no traceback, exit code 1 (2 for usage)."""
    result = run(*words)
    assert result.exit_code == code, result.output
    assert isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    if code == 1:
        assert "error: " in result.stderr
    return " ".join(result.stderr.split())
