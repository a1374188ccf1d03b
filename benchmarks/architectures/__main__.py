"""Every architecture of `tests/architectures`: is it captured, planned, and computed right on shards?

python benchmarks/architectures -o benchmarks/architectures.json --page docs/architectures.md

Each runs in a process of its own with a time limit; a stage that fails is kept with its error.
With names, only these are run and their results replaced; with `--no-run` only the page is written.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))

from page import line, page  # noqa: E402

LIMIT_S = 300.0


def main() -> None:
    """Run, print each row, write JSON and page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of ARCHITECTURES; none: all")
    parser.add_argument("--mesh", default="2x2")
    parser.add_argument("--hardware", default="cpu")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds per architecture")
    parser.add_argument("-o", "--output", type=Path, default=HERE.parent / "architectures.json")
    parser.add_argument("--page", type=Path, help="the Markdown file to write")
    parser.add_argument("--no-run", action="store_true", help="write the page of what was found")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        from stages import run

        return run(options.inside, options.mesh, options.hardware)
    if not options.no_run:
        run_all(options)
    if options.page:
        options.page.write_text(page(json.loads(options.output.read_text())))
    return None


def run_all(options: argparse.Namespace) -> None:
    """Each in a process; what was found is written after each."""
    from tests.architectures import ARCHITECTURES

    found: dict[str, Any] = {}
    options.date = datetime.date.today().isoformat()
    if options.names and options.output.exists():
        before = json.loads(options.output.read_text())
        found = {entry["name"]: entry for entry in before["results"]}
        options.date = f"{before['date']}; {', '.join(options.names)} of {options.date}"
    for name in options.names or ARCHITECTURES:
        found[name] = {"name": name, **stages_of(name, options)}
        print(line(found[name]), flush=True)
        options.output.write_text(
            json.dumps(document(found, ARCHITECTURES, options), indent=1) + "\n"
        )


def stages_of(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """What a process found before it ended or its time was over."""
    command = [
        sys.executable, str(HERE), "--inside", name, "--mesh", options.mesh,
        "--hardware", options.hardware,
    ]  # fmt: skip
    # A session of its own: ranks that hang end with their parent.
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=options.limit)
        ending = f"exit code {process.returncode}: {err[-500:]}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        ending = f"not done after {options.limit:g} s"
    found: dict[str, Any] = {}
    for text in out.splitlines():
        if text.startswith('{"stage"'):
            said = json.loads(text)
            found[said.pop("stage")] = said
    for said in found.values():
        if said["status"] == "running":
            said.update(status="failed", error=ending)
    return found or {"build": {"status": "failed", "error": ending}}


def document(found: dict[str, Any], names: Any, options: argparse.Namespace) -> dict[str, Any]:
    """What is written."""
    return {
        "date": options.date,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, one thread",
        "mesh": options.mesh,
        "hardware": options.hardware,
        "results": [found[name] for name in names if name in found],
    }


if __name__ == "__main__":
    main()
