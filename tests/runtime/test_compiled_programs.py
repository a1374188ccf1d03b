"""Modules of compiled programs are known by name, and leave when no iteration can notice."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

from autopar.runtime.program import Program, load
from autopar.utils.cache import write
from tests import parity, peaks


def compiled(folder: Path) -> Program:
    plan, work = peaks.planned("mlp", 1)
    path = write(work.source, folder / "emitted.py")
    made = load(plan, parity.reference("mlp").graph, work.source, path)
    made.compile(backend="eager")
    return made


def test_a_module_leaves_at_the_next_compilation(tmp_path: Path) -> None:
    first = compiled(tmp_path)
    name = first.module.__name__
    assert sys.modules[name] is first.module
    del first
    for _ in sys.modules:
        gc.collect()
        break
    assert name in sys.modules, "collecting does not change what somebody may iterate over"
    second = compiled(tmp_path)
    assert name not in sys.modules
    assert sys.modules[second.module.__name__] is second.module
