"""The model classes of `transformers` that train, each tried with three layers on two ranks.

python benchmarks/model_zoo -o benchmarks/model_zoo.json --page docs/model_zoo.md

A class is made from its own default configuration with small sizes (`shrink`), which one process has
to be able to train; then it is trained three steps under each plan, in float64, beside one process.
With names, only these are run and their rows replaced; `--no-run` writes the page alone.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from page import line, page  # noqa: E402

LIMIT_S = 180.0


def main() -> None:
    """Run, print each row, write JSON and page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="CLASS", help="none: all")
    parser.add_argument("--every", action="store_true", help="all tasks of every model type")
    parser.add_argument("--missing", action="store_true", help="only classes without a row yet")
    parser.add_argument("--plans", nargs="+", help="of free, fsdp, megatron")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds per plan")
    parser.add_argument("-o", "--output", type=Path, default=HERE.parent / "model_zoo.json")
    parser.add_argument("--page", type=Path, help="the Markdown file to write")
    parser.add_argument("--no-run", action="store_true", help="write the page of what was found")
    options = parser.parse_args()
    if not options.no_run:
        run(options)
    if options.page:
        options.page.write_text(page(json.loads(options.output.read_text())["results"]))


def run(options: argparse.Namespace) -> None:
    """Each class in processes of its own; what was found is written after each."""
    import transformers
    from classes import model_classes
    from trial import PLANS, tried, warm

    transformers.logging.set_verbosity_error()
    warm()
    found: dict[str, Any] = {}
    if options.output.exists():
        found = {
            entry["name"]: entry for entry in json.loads(options.output.read_text())["results"]
        }
    for which in model_classes(options.every):
        wanted = which.name in options.names if options.names else True
        if not wanted or (options.missing and which.name in found):
            continue
        plans = tuple(options.plans or PLANS)
        row = {
            **asdict(which),
            "commit": commit(),
            "date": datetime.date.today().isoformat(),
            "plans": tried(which, plans, options.limit),
        }
        found[which.name] = row
        print(line(row), flush=True)
        results = sorted(found.values(), key=lambda entry: (entry["model_type"], entry["name"]))
        options.output.write_text(json.dumps({"results": results}, indent=1) + "\n")


def commit() -> str:
    """What the row was measured at, "-dirty" where code differs from it."""
    code = [str(HERE.parent.parent / name) for name in ("autopar", "cost_models", "tests")]
    git = ["git", "-C", str(HERE)]
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", str(HERE), *code])
    return head.stdout.strip() + ("-dirty" if changed.returncode else "")


if __name__ == "__main__":
    main()
