"""Predicted against measured: steps, operators and collectives of models x plans x networks, on gloo.

    sudo python benchmarks/predict.py -o benchmarks/predict.json

Links are calibrated and operators are timed first, once for all networks on one host and for each of
the others, in launches of their own and on models of other sizes (`predict_cases.py`).  Then all plans
of all models train in one launch and take turns within every round, so that noise of the machine falls
on all alike; then each has steps traced.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from namespaces import launch, two_hosts
from predict_cases import MODELS, NETWORKS, PLANS, Network
from predict_table import Row, summary, table
from setting import environment

from autopar.compile.compiler import Compiler
from autopar.cost.operators import call_of
from autopar.cost.timed import setting_for
from autopar.ir.mesh import Mesh
from autopar.request.options import Options
from autopar.rules import LocalCall, local_call
from autopar.sharding.sharding_problem import Compilation
from cost_models.hardware import Hardware, load
from cost_models.measured import Call, Setting
from cost_models.measured.here import processor

LIMIT_S = 900.0
RANKS = str(Path(__file__).parent / "predict_ranks.py")
Launch = Callable[[Sequence[str]], None]


def main() -> None:
    """Every network in turn; print, write."""
    asked = arguments()
    with workplace(asked.keep) as folder:
        found = [row for network in asked.networks for row in on_network(network, asked, folder)]
    rows = [Row.of(each) for each in found]
    said = summary(rows)
    print(table(rows), "", *(f"{name:>50}  {value}" for name, value in said.items()), sep="\n")
    if asked.output:
        asked.output.write_text(to_json(asked, said, map(kept, found, rows)))


def arguments() -> argparse.Namespace:
    """What was asked for; refused at once where this machine cannot do it."""
    by_name = {network.name: network for network in NETWORKS}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="*", choices=by_name, default=list(by_name))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--traced", type=int, default=2, help="traced steps of a plan")
    parser.add_argument("--keep", type=Path, help="folder for what was calibrated, used again")
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    asked.networks = [by_name[name] for name in asked.networks]
    joined = [network.name for network in asked.networks if network.rate]
    if joined and (sys.platform != "linux" or os.geteuid() != 0):
        alone = " ".join(repr(name) for name in by_name if not by_name[name].rate)
        parser.error(
            f"{', '.join(joined)}: hosts are network namespaces, which need Linux and root. Start it "
            f"with sudo, or leave them out: --networks {alone}"
        )
    return asked


def kept(found: Mapping[str, Any], row: Row) -> dict[str, Any]:
    """Of a combination: the plan's own figures, and what was compared."""
    own = ("digest", "compute_s", "exposed_s", "hidden_s", "sources", "seconds")
    return {**asdict(row), **{key: found[key] for key in own}}


def to_json(
    asked: argparse.Namespace, said: Mapping[str, Any], found: Iterable[Mapping[str, Any]]
) -> str:
    """Where, when, what it comes to; a line for each combination."""
    content = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{os.cpu_count()} cores, {processor()}, gloo, one thread a rank",
        "versions": {name: version(name) for name in ("torch", "transformers")},
        "python": platform.python_version(),
        "networks": {n.name: n.rate or "shared memory" for n in asked.networks},
        "measured on": {name: str(model.measured) for name, model in MODELS.items()},
        "timed on": {name: list(map(str, model.timed)) for name, model in MODELS.items()},
        "rounds": asked.rounds,
        "summary": said,
    }
    lines = ",\n".join(f"  {json.dumps(each)}" for each in found)
    whole = json.dumps(content, indent=1).removesuffix("\n}")
    return f'{whole},\n "results": [\n{lines}\n ]\n}}\n'


def say(text: str) -> None:
    """Of what takes a while."""
    print(text, file=sys.stderr, flush=True)


def on_network(network: Network, asked: argparse.Namespace, whole: Path) -> list[dict[str, Any]]:
    """Calibrate and time, unless that was kept; then train."""
    folder = whole / network.name.replace(" ", "_")
    folder.mkdir(exist_ok=True)
    with launcher(network) as start:
        profile = (folder if network.rate else whole) / "hardware.toml"
        times = folder / "times.sqlite"
        if not profile.exists():
            say(f"{network.name}: calibrating ...")
            calibrated(network, profile, start)
        if not (times.exists() and (folder / "pace.json").exists()):
            calls = wanted(network, load(profile))
            say(f"{network.name}: timing {len(calls[0])} operators ...")
            (folder / "calls.pickle").write_bytes(pickle.dumps(calls))
            start([RANKS, "time", str(folder)])
        say(f"{network.name}: training ...")
        order = {
            "hardware": str(profile), "mesh": network.mesh, "models": list(MODELS),
            "plans": PLANS[network.ranks], "rounds": asked.rounds, "traced": asked.traced,
        }  # fmt: skip
        (folder / "asked.json").write_text(json.dumps(order))
        start([RANKS, "train", str(folder)])
        rows: list[dict[str, Any]] = json.loads((folder / "rows.json").read_text())
    return [{"network": network.name, **row} for row in rows]


def calibrated(network: Network, profile: Path, start: Launch) -> None:
    """One host by itself; several under torchrun, as docs/hardware.md says."""
    command = ["-m", "autopar", "calibrate", "-o", str(profile)]
    if network.rate:
        start(command)
    else:
        subprocess.run([sys.executable, *command], check=True, timeout=LIMIT_S)


@contextmanager
def workplace(keep: Path | None) -> Iterator[Path]:
    """A folder: a kept one, or one that is gone afterwards."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.absolute()
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
    subprocess.run(command, check=True, env=environment(), timeout=LIMIT_S)


def wanted(network: Network, hardware: Hardware) -> tuple[list[Any], Setting]:
    """The calls to be timed, on ranks of which kind: what the plans run of models of other sizes."""
    mesh = Mesh.of(*network.mesh)
    found: dict[str, Any] = {}
    for model in MODELS.values():
        for size in model.timed:
            made, batch = model.case(size)
            compiler = Compiler(made, mesh, hardware, Options())
            graph = compiler.graph(batch)
            for plan in PLANS[network.ranks]:
                options = Options(preset=None if plan == "solver" else plan)
                found |= calls_of(compiler.with_options(options).compile(graph))
    return list(found.values()), setting_for(hardware, mesh)


def calls_of(made: Compilation) -> dict[str, tuple[LocalCall, Call]]:
    """What a rank runs of a plan, by the call's text."""
    graph, mesh = made.graph, made.plan.mesh
    found = {}
    for choice in made.plan.choices:
        node = graph.node[choice.node]
        local = local_call(node, choice.sharding, graph, mesh)
        call = call_of(node, choice.sharding, graph, mesh)
        if local is not None and call is not None:
            found[call.text] = local, call
    return found


if __name__ == "__main__":
    main()
