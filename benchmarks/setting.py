"""How processes that are timed are started: what would differ from step to step stays as it is.

A process of one program gets its memory in its first steps and keeps most of it.  Where several programs
take turns, one gives back to the system what another asks for again; a page that is new takes 7 us on a
virtual machine, and made the first forwards of a GPT-2 of 850 MB take five times as long as later ones
(2026-11-23).  So freed memory stays with the process: glibc's allocator is told so, for all alike.
"""

from __future__ import annotations

import os

KEPT = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
}
"""See mallopt(3)."""
SETTLING = 2
"""Steps of a turn that are not timed: caches are another program's."""


def environment() -> dict[str, str]:
    """This process', with one thread per rank and memory that stays."""
    return {**os.environ, **KEPT, "OMP_NUM_THREADS": "1"}
