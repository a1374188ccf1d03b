"""Six models on three networks: autopar's plan against DDP, FSDP2, tensor parallelism and pipelining.

    sudo python benchmarks/race -o benchmarks/race.json                    # all
    sudo python benchmarks/race --network two --model gpt2 -o race.json    # a part

Hosts are network namespaces of this machine (`../racks.py`).  Each network is calibrated in a run of its
own.  Then, for each model, every setting of every contender makes a step that is compared with one
process', and is timed for some steps; the best setting of each contender enters the race, in which all
take turns.  Who does not train the same model is not counted, and the output says so.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from networks import NETWORKS, Network  # noqa: E402
from results import merged, overall, read, settings_of, table  # noqa: E402

MODELS = ("gpt2", "llama", "bert", "t5", "vit", "moe")
FAMILIES = ("DDP", "FSDP2", "tensor", "pipelining", "autopar")


def main() -> None:
    """Run what is asked for, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", action="append", choices=NETWORKS, help="default: all")
    parser.add_argument("--model", action="append", choices=MODELS, help="default: all")
    parser.add_argument("--contender", action="append", choices=FAMILIES, help="default: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tiny", action="store_true", help="small models: is everybody equal?")
    parser.add_argument("--profiles", type=Path, help="folder that keeps the calibrated profiles")
    parser.add_argument("-o", "--output", type=Path, help="JSON; what it has of other races stays")
    parser.add_argument("--print", action="store_true", help="print what the file has, run nothing")
    asked = parser.parse_args()
    if asked.tiny and asked.output:
        parser.error("--tiny measures nothing that is worth a file; leave -o out.")
    if asked.print:
        show(read(asked.output))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.profiles or Path(scratch)
        folder.mkdir(exist_ok=True)
        for network in asked.network or NETWORKS:
            run_network(NETWORKS[network], folder, asked)
    if asked.output:
        show(read(asked.output))


def run_network(network: Network, folder: Path, asked: argparse.Namespace) -> None:
    """Calibrate it, then one model after the other; what was found is written after each."""
    profile = folder / f"{network.name}.toml"
    if not profile.exists():
        network.calibrate(profile)
    for model in asked.model or MODELS:
        print(f"{network.name}, {model}", flush=True)
        race = run(network, model, profile, asked)
        print(settings_of(race), flush=True)
        if asked.output:
            races = merged(read(asked.output), [race], MODELS)
            asked.output.write_text(json.dumps(document(races), indent=1) + "\n")


def run(network: Network, model: str, profile: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """One race."""
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch) / "found.json"
        network.run(
            [
                str(HERE / "worker.py"), "--model", model,
                "--sizes", ",".join(map(str, network.sizes)), "--hardware", str(profile),
                "--rounds", str(asked.rounds), "--families", ",".join(asked.contender or FAMILIES),
                "--output", str(result), *(["--tiny"] if asked.tiny else []),
            ]
        )  # fmt: skip
        settings = json.loads(result.read_text())
    return {
        "network": network.name, "model": model, "says": network.says,
        "date": datetime.date.today().isoformat(), "commit": commit(), "settings": settings,
    }  # fmt: skip


def document(races: list[Mapping[str, Any]]) -> dict[str, Any]:
    """What is written."""
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers")}
    return {
        "date": datetime.date.today().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, one thread per rank, gloo",
        "versions": {"python": platform.python_version(), **versions},
        "overall": overall(races),
        "races": races,
    }


def show(races: list[Mapping[str, Any]]) -> None:
    """The table, and what it comes to."""
    print(table(races))
    for name, value in overall(races).items():
        print(f"{name}: {value}")


def commit() -> str:
    """Of the sources that ran."""
    asked = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(
        asked, capture_output=True, text=True, check=False, cwd=HERE
    ).stdout.strip()


if __name__ == "__main__":
    main()
