"""What the README shows and what lies in examples/ runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def torchrun(ranks: int, script: Path, *arguments: str, cache: Path) -> str:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks),
        str(script), *arguments,
    ]  # fmt: skip
    place = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "AUTOPAR_CACHE": str(cache)}
    done = subprocess.run(
        command,
        env={**os.environ, **place},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow  # that it runs, tests/docs looks at every day
def test_the_readme_example_learns(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    code = re.search(r"```python\n(# torchrun.*?)```", text, re.DOTALL)
    assert code is not None
    script = tmp_path / "train.py"
    script.write_text(
        code[1] + "    if torch.distributed.get_rank() == 0:\n        print(loss.item())\n"
    )
    losses = [float(line) for line in torchrun(4, script, cache=tmp_path).split()]
    assert len(losses) == 10
    assert min(losses) < max(losses) - 0.3, "it does not learn"


@pytest.mark.thorough
def test_train_gpt(tmp_path: Path) -> None:
    arguments = ("--mesh", "2", "--steps", "3", "--layers", "1", "--batch", "4", "--preset", "fsdp")
    printed = torchrun(2, ROOT / "examples" / "train_gpt.py", *arguments, cache=tmp_path)
    assert "the same numbers" in printed
    assert "step time: predicted" in printed
    words = " ".join(printed.split())
    speed = re.search(r"([\d,]+) tokens/s; ([\d.]+) GFLOP a step, MFU ([\d.]+)%", words)
    assert speed is not None and "peak memory" in words
    # 2 layers' worth of parameters: 6 operations per token and parameter, and attention's.
    tokens, parameters = 4 * 64, 12 * 128**2 + 256 * 128
    assert 1.0 < float(speed[2]) * 1e9 / (6 * tokens * parameters) < 1.3
    assert float(speed[1].replace(",", "")) > 0 and 0 < float(speed[3]) < 100
    assert str(tmp_path) in printed.replace("\n", "")
