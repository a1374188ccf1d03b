"""Prints the error message of a failed command, in red on standard error."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text


def complain(what: str) -> None:
    """Print an error message; the caller exits with code 1."""
    console = Console(stderr=True, highlight=False)
    console.print(Text(f"error: {what}", style="red"), soft_wrap=True)
