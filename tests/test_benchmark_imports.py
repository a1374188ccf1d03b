"""Every benchmark can be imported: what it names in the package is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"
PROGRAM = """
import importlib.util, sys
from pathlib import Path

for file in sys.argv[1:]:
    path = Path(file)
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location("benchmark_" + path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        print(f"{path.name}: {type(error).__name__}: {error}")
    sys.path.pop(0)
"""


@pytest.mark.thorough
def test_benchmarks_can_be_imported() -> None:
    files = sorted(map(str, FOLDER.glob("*.py")))
    assert len(files) > 20
    made = subprocess.run(
        [sys.executable, "-c", PROGRAM, *files], capture_output=True, text=True, timeout=100
    )
    assert made.returncode == 0, made.stderr
    assert made.stdout == ""
