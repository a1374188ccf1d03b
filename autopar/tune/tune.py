"""Tunes on every rank of a launch: rank 0 decides, all ranks run, and all return the result."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import torch
import torch.distributed as dist
from pydantic import TypeAdapter
from torch import nn

from autopar.api import parallelize
from autopar.compile.given import as_hardware
from autopar.errors import AutoparError, RankFailedError, RankMismatchError
from autopar.ir.mesh import Mesh
from autopar.request.optimizers import maker_of
from autopar.request.options import Options
from autopar.runtime import agreement, world
from autopar.runtime import failure_watchdog as faults
from autopar.tune.ask import Ask
from autopar.tune.planner import AskPlanner
from autopar.tune.record import Record, Setting, Tuned
from autopar.tune.search import Search, Searching, Tuning
from autopar.tune.trial import freed, step_seconds
from cost_models.hardware import Hardware, digest, parse, to_text

LEARNING_RATE = 1e-5


@dataclass(frozen=True)
class Tune:
    """The work of every process; picklable, if `load` is.

    `load` returns model, example inputs and loss.  `options` are optimizer, precision and memory limit
    as `parallelize` takes them.
    """

    load: Callable[[], tuple[nn.Module, Any, Any]]
    mesh: Mesh
    hardware: str | None
    options: Mapping[str, Any]
    tuning: Tuning
    tell: Callable[[str], None]

    def __call__(self) -> Tuned:
        """Tune; a collective call.  Raises `InfeasibleError` if no plan could be run."""
        world.join(self.mesh.world_size)
        faults.watch()
        hosts: list[str] = [""] * dist.get_world_size()
        dist.all_gather_object(hosts, socket.gethostname())
        search = self._search(tuple(hosts)) if dist.get_rank() == 0 else None
        answer: float | str | None = None
        while True:
            (word,) = agreement.from_first_rank(lambda: (_next(search, answer),), "what to try")  # noqa: B023
            told = json.loads(word)
            if "tuned" in told:
                return Tuned.from_json(told["tuned"])
            ask = TypeAdapter(Ask).validate_python(told["ask"])
            answer = self._tried(ask, parse(told["hardware"], "the profile of rank 0"))

    def _search(self, hosts: tuple[str, ...]) -> Search:
        model, inputs, loss = self.load()
        first = as_hardware(self.hardware)
        asked = Options.of(loss=loss, **self.options)
        planner = AskPlanner(model, inputs, self.mesh, asked, first)
        setting = Setting(
            planner.graph.name, planner.graph.digest, str(self.mesh), asked.optimizer,
            str(asked.precision), f"{first.device.name}, {digest(first)}", version("torch"), hosts,
        )  # fmt: skip
        path = self.tuning.record
        record = Record(setting) if path is None else Record.load(path, setting)
        return Searching(planner, self.tuning, record, self.tell).search()

    def _tried(self, ask: Ask, hardware: Hardware) -> float | str:
        """Return the seconds of a step, or why there is none; an error of one rank alone is raised."""
        torch.manual_seed(0)
        model, inputs, loss = self.load()
        try:
            parallel = parallelize(
                model, self.mesh, inputs, loss=loss, hardware=hardware, **self.options, **ask.arguments()
            )  # fmt: skip
            make = maker_of(self.options.get("optimizer", "AdamW"))
            optimizer = make(parallel.parameters(), lr=LEARNING_RATE)
            return step_seconds(parallel, inputs, optimizer, self.tuning.steps)
        except (RankFailedError, RankMismatchError):
            raise
        except AutoparError as error:
            return str(error)
        finally:
            del model
            freed()


def _next(search: Search | None, answer: float | str | None) -> str:
    """Return rank 0's next word: what to try, or the result."""
    assert search is not None, "only rank 0 decides"
    try:
        attempt, hardware = next(search) if answer is None else search.send(answer)
    except StopIteration as ended:
        return json.dumps({"tuned": ended.value.to_json()})
    return json.dumps({"ask": asdict(attempt.ask), "hardware": to_text(hardware)})
