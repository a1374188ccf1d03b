"""Streams whose updates do not wait, against one process that keeps versions of weights.

The single process knows the papers, not our lists: for each batch, of how many updates the weights of
each stage lack.  Runs inside pool workers.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

import autopar
from autopar.errors import AutoparError
from autopar.runtime.pipeline.asynchronous import Asynchronous
from autopar.runtime.pipeline.versions import Versions
from tests import models
from tests.capture.compare import eager_loss
from tests.parity import close
from tests.pipelines import random_stages
from tests.wide import Wide

Make = Callable[[list[torch.Tensor]], torch.optim.Optimizer]


def decayed(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    """SGD whose learning rate falls with every update."""
    made = torch.optim.SGD(parameters, lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(made, 0.9)
    made.register_step_post_hook(lambda *_: scheduler.step())
    return made


OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9),
    "AdamW": lambda ps: torch.optim.AdamW(ps, lr=3e-3),
    "decayed": decayed,
}
CASES: dict[str, Callable[[int], models.Case]] = {
    "mlp": models.mlp,
    "cnn": models.cnn,
    "gpt2": lambda seed: models.gpt2(layers=4, seed=seed, tie_word_embeddings=False),
    "tied": lambda seed: models.gpt2(layers=2, seed=seed),
}


@dataclass(frozen=True)
class Run:
    """One model, trained in streams of so many batches.  `seed`: of random plans; None: the solver's."""

    name: str
    stages: tuple[Any, ...]
    schedule: str
    optimizer: str
    microbatches: int | None = None
    streams: tuple[int, ...] = (7, 5)
    seed: int | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Processes."""
        return sum(self.stages)


def check_run(run: Run) -> bool:
    """Losses and weights are those of the single process, and versions are as many as they should be.

    Tells whether this rank gathers any weights once per update.
    """
    model, example, loss = models.double(CASES[run.name](0))
    batches = [_batch(run.name, seed) for seed in range(sum(run.streams))]
    parallel = pipelined(run, model, example, loss)
    readers = {
        name: stage
        for stage, graph in enumerate(parallel._first.stages.graphs)
        for name in (node.target for node in graph.leaves("parameter"))
    }
    single = Single(copy.deepcopy(model), loss, readers, run)
    plain = Single(copy.deepcopy(model), loss, readers, run)
    optimizer = OPTIMIZERS[run.optimizer](list(parallel.parameters()))
    start, most = 0, 1
    for count in run.streams:
        part = batches[start : start + count]
        with Counting() as counting:
            got = parallel.train_steps(part, optimizer)
        most = max(most, counting.most)
        for place, want in enumerate(single.stream(part, run.schedule)):
            close(got[place], want, f"loss of batch {start + place}")
        plain.stream(part, "synchronous")
        start += count
    assert all(parameter.grad is None for parameter in parallel.parameters())
    whole = parallel.full_state_dict()
    for name, want in single.live.items():
        close(whole[name], want.detach(), f"weight {name}", float(want.detach().abs().max()))
    for name, buffer in single.model.named_buffers():
        if name in parallel._persistent:
            close(whole[name], buffer, f"buffer {name}")
    check_evaluation(parallel, batches[0], single.loss_now(batches[0]))
    far = max(float((whole[name] - want.detach()).abs().max()) for name, want in plain.live.items())
    assert far > 1e-4, f"weights differ from those of plain training by {far} only"
    stage = parallel._first.worker
    assert most == versions(run.schedule, len(run.stages), stage), (most, stage)
    return not all(slot.shares_storage for slot in parallel._slots)


def pipelined(run: Run, model: Any, example: dict[str, Any], loss: Any) -> Asynchronous:
    """The model as stages that update at their own times."""
    asked = autopar.Pipeline(run.stages, run.schedule, run.microbatches, asynchronous=True)
    with Wide(), random_stages(run.seed):
        parallel = autopar.parallelize(
            model, sum(run.stages), example, loss=loss, optimizer="AdamW", hardware="cpu",
            pipeline=asked, **run.options,
        )  # fmt: skip
    assert isinstance(parallel, Asynchronous)
    return parallel


def check_evaluation(parallel: Asynchronous, batch: dict[str, Any], want: torch.Tensor) -> None:
    """The loss by forwards alone, in either mode."""
    with Wide(), torch.no_grad():
        close(parallel(**batch), want, "loss without gradients")
        parallel.eval()
        found = parallel(**batch)
        parallel.train()
    if not any(graph.mutations for graph in parallel._first.stages.graphs):
        close(found, want, "loss in evaluation")


def missing(schedule: str, stages: int, stage: int) -> int:
    """Of how many updates a batch's weights lack in a stage, once the pipeline is full.

    Narayanan et al., SOSP 2019, section 3.3 (it counts stages from 1); arXiv:2006.09503, section 3.1.
    """
    return {
        "pipedream": stages - 1 - stage,
        "pipedream-vertical": stages - 1,
        "pipedream-2bw": 1,
        "synchronous": 0,
    }[schedule]


def versions(schedule: str, stages: int, stage: int) -> int:
    """How many versions of its weights a stage keeps at most, the newest among them."""
    return missing(schedule, stages, stage) + 1


class Single:
    """One process: versions of all weights by stage, whole batches, updates in order."""

    def __init__(
        self, model: torch.nn.Module, loss: Any, readers: dict[str, int], run: Run
    ) -> None:
        self.model, self.loss, self.readers, self.run = model, loss, readers, run
        self.live = {n: p.detach().clone() for n, p in model.named_parameters()}
        for tensor in self.live.values():
            tensor.requires_grad_()
        self.optimizer = OPTIMIZERS[run.optimizer](list(self.live.values()))

    def stream(self, batches: list[dict[str, Any]], schedule: str) -> list[torch.Tensor]:
        """The losses of batches that begin with an empty pipeline."""
        history = [self._copy()]
        losses = []
        for place, batch in enumerate(batches):
            used = {
                name: history[max(0, place - missing(schedule, len(self.run.stages), stage))][name]
                for name, stage in self.readers.items()
            }
            losses.append(self._gradients(batch, used))
            self.optimizer.step()
            self.optimizer.zero_grad()
            history.append(self._copy())
        return losses

    def loss_now(self, batch: dict[str, Any]) -> torch.Tensor:
        """With the newest weights."""
        return self._gradients(batch, self._copy())

    def _gradients(self, batch: dict[str, Any], weights: dict[str, torch.Tensor]) -> torch.Tensor:
        """The loss of a batch with given weights; its gradients stand at the newest ones."""
        self.model.zero_grad()
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(weights[name])
        with Wide():
            loss = eager_loss(self.model, batch, self.loss)
        loss.backward()
        for name, parameter in self.model.named_parameters():
            self.live[name].grad = None if parameter.grad is None else parameter.grad.clone()
        return loss.detach()

    def _copy(self) -> dict[str, torch.Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self.live.items()}


class Counting:
    """The most versions of a parameter that were alive at once: leaves of different storage."""

    def __enter__(self) -> Counting:
        self.most, self._seen = 1, []
        self._update = Versions.update

        def update(versions: Versions, step: Callable[[], None]) -> None:
            self._note(versions)
            self._update(versions, step)
            self._note(versions)
            self._count(versions)

        Versions.update = update  # type: ignore[method-assign]
        return self

    def _note(self, versions: Versions) -> None:
        self._seen.append(weakref.ref(versions._slots[0].leaf))

    def _count(self, versions: Versions) -> None:
        alive = {leaf.data_ptr() for seen in self._seen if (leaf := seen()) is not None}
        assert len(alive) == len(versions.kept), (alive, versions.kept)
        self.most = max(self.most, len(alive))

    def __exit__(self, *_: object) -> None:
        Versions.update = self._update  # type: ignore[method-assign]


def _batch(name: str, seed: int) -> dict[str, Any]:
    if name in ("gpt2", "tied"):
        return models.tokens(seed)
    return models.double(CASES[name](seed))[1]


def refusals() -> dict[str, str]:
    """What is said to things that have no meaning here."""
    run = Run("mlp", (1, 1), "pipedream", "SGD")
    model, example, loss = models.double(CASES["mlp"](0))
    parallel = pipelined(run, model, example, loss)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    small = {key: value[:4] for key, value in example.items()}
    calls: dict[str, Callable[[], Any]] = {
        "train_step": lambda: parallel.train_step(**example),
        "call": lambda: parallel(**example),
        "clip": lambda: parallel.clip_grad_norm_(1.0),
        "scaler": lambda: parallel.grad_scaler(),
        "empty": lambda: parallel.train_steps([], optimizer),
        "one": lambda: parallel.train_steps(example, optimizer),  # type: ignore[arg-type]
        "shapes": lambda: parallel.train_steps([example, small], optimizer),
        "foreign": lambda: parallel.train_steps([example], OPTIMIZERS["SGD"]([*model.parameters()])),
        "count": lambda: parallel.train_steps(
            [example] * (1 + parallel._first.worker), optimizer
        ),
        "tied": lambda: pipelined(
            Run("tied", (1, 1), "pipedream", "SGD"), *models.double(CASES["tied"](0))
        ),
    }  # fmt: skip
    found = {}
    for name, call in calls.items():
        try:
            call()
        except AutoparError as error:
            found[name] = str(error)
    return found
