"""Predicted against measured: steps, operators and collectives of models x plans x networks, on gloo.

    sudo python benchmarks/predict.py -o benchmarks/predict.json

On each network the link is calibrated and operators are timed first, in launches of their own and on
models of other sizes (`predict_cases.py`).  Then all plans of all models train in one launch and take turns
within every round, so that noise of the machine falls on all alike; at the end each has steps traced.
Networks of several hosts are namespaces of this machine (`namespaces.py`), which need Linux and root.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pickle
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from namespaces import launch, two_hosts
from predict_cases import MODELS, NETWORKS, PLANS, Model, Network

from autopar.compiler.compiler import Compiler
from autopar.mesh import Mesh
from autopar.plans.plan import OpSharding
from autopar.pricing.operators import call_of
from autopar.pricing.timed import setting_for
from autopar.request.options import Options
from autopar.rules import local_call
from cost_models.hardware import Hardware, load

LIMIT_S = 900.0
RANKS = str(Path(__file__).parent / "predict_ranks.py")
Launch = Callable[[Sequence[str]], None]


def main() -> None:
    """Every network in turn; print, write."""
    asked = arguments()
    found = []
    for network in NETWORKS:
        if asked.networks and network.name not in asked.networks:
            continue
        say(f"{network.name} {network.rate}")
        found += on_network(network, asked)
    text = json.dumps(found)
    if asked.output:
        asked.output.write_text(text)


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="*", choices=[n.name for n in NETWORKS])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=2, help="timed steps of a plan in a round")
    parser.add_argument("--traced", type=int, default=3, help="traced steps of a plan")
    parser.add_argument("--keep", type=Path, help="folder for what was calibrated, used again")
    parser.add_argument("-o", "--output", type=Path)
    return parser.parse_args()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def on_network(network: Network, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Calibrate, time, train."""
    with workplace(network, asked.keep) as folder, launcher(network) as start:
        profile = folder / "hardware.toml"
        if not profile.exists():
            say("calibrating ...")
            start(["-m", "autopar", "calibrate", "-o", str(profile)])
        if not (folder / "times.sqlite").exists():
            say("timing operators ...")
            calls = wanted(network, load(profile))
            (folder / "calls.pickle").write_bytes(pickle.dumps(calls))
            start([RANKS, "time", str(folder)])
        say("training ...")
        order = {
            "hardware": str(profile), "mesh": network.mesh, "models": list(MODELS),
            "plans": PLANS[network.ranks], "rounds": asked.rounds, "steps": asked.steps,
            "traced": asked.traced,
        }  # fmt: skip
        (folder / "asked.json").write_text(json.dumps(order))
        start([RANKS, "train", str(folder)])
        rows: list[dict[str, Any]] = json.loads((folder / "rows.json").read_text())
    return [{"network": network.name, **row} for row in rows]


@contextmanager
def workplace(network: Network, keep: Path | None) -> Iterator[Path]:
    """A folder: a kept one, or one that is gone afterwards."""
    if keep is not None:
        folder = keep / network.name.replace(" ", "_")
        folder.mkdir(parents=True, exist_ok=True)
        yield folder.absolute()
        return
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


@contextmanager
def launcher(network: Network) -> Iterator[Launch]:
    """Starts a script under torchrun on every host."""
    if not network.rate:
        yield partial(start_here, network.per_host)
        return
    with two_hosts(network.rate) as hosts:
        yield lambda script: launch(hosts, network.per_host, script, LIMIT_S)


def start_here(ranks: int, script: Sequence[str]) -> None:
    """On this host alone."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
        str(ranks), *script,
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, env=environment, timeout=LIMIT_S)


def wanted(network: Network, hardware: Hardware) -> Any:
    """The calls to be timed: what the presets' plans run of the models at the sizes for that."""
    mesh = Mesh.of(*network.mesh)
    pairs = {}
    for model in MODELS.values():
        for size in model.timed:
            made, batch = model.case(size)
            compiler = Compiler(made, mesh, hardware, Options())
            graph = compiler.graph(batch)
            for plan in PLANS[network.ranks]:
                options = Options(preset=None if plan == "solver" else plan)
                compiled = compiler.with_options(options).compile(graph)
                for choice in compiled.plan.choices:
                    node = compiled.graph.node[choice.node]
                    local = local_call(node, choice.sharding, compiled.graph, mesh)
                    call = call_of(node, choice.sharding, compiled.graph, mesh)
                    if local is not None and call is not None:
                        pairs.setdefault(call.text, (local, call))
    return list(pairs.values()), setting_for(hardware, mesh)


if __name__ == "__main__":
    main()
