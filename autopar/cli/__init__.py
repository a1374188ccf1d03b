"""The command line: one command per file; every error is one message, never a traceback."""

from autopar.cli.app import app, main

__all__ = ["app", "main"]
