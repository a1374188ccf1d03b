"""Starts forked processes while other threads may run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def threads_allowed() -> Iterator[None]:
    """Within the context, Python from 3.12 on does not warn of a fork beside other threads.

    Those of gloo, of data loaders and of the math libraries nearly always run.  The forked processes
    only compute, on one thread, and end with their parent; with AUTOPAR_PROCESSES=1 planning starts
    none.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)
        yield
