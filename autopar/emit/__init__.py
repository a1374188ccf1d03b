"""Plan + Graph -> one readable Python module."""

from autopar.emit.render import emit

__all__ = ["emit"]
