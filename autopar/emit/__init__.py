"""Generates one readable Python module from a plan and its graph."""

from autopar.emit.render import emit

__all__ = ["emit"]
