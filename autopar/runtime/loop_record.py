"""Records what this rank's training loop does between two steps, so that ranks can compare it.

Nothing is communicated here: the comparison that every step makes carries a digest of the record.  Only
what must be equal on all ranks of one worker is recorded: backwards and the gradient of the loss that
they begin with, clipping, and steps of optimizers with the settings that their class defines.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from autopar.runtime import launch

Event = tuple[str, dict[str, Any]]
"""What was done, and its settings."""
KEPT, GROUPS = 256, 16
"""Largest number of events between two steps, and of an optimizer's groups, that are compared."""
CLOSE = 1e-3
"""Relative difference of numbers that may come from rounding, as on unequal processors."""
WAYS = {"foreach", "fused", "capturable", "differentiable"}
"""Settings of optimizers that do not change the result."""
FORWARD, MICROBATCHES, BACKWARD, LOSS, CLIP, STEP, HELD = (
    "forward", "train_step", "backward", "gradient of the loss", "clip_grad_norm_", "optimizer step",
    "gradients",
)  # fmt: skip
WAY = ("under no_sync()", "outside no_sync()")
VERBS = {
    FORWARD: "ran a forward {}",
    MICROBATCHES: "called train_step with {}",
    BACKWARD: "ran a backward {}",
    LOSS: "had a backward from {}",
    CLIP: "clipped gradients with {}",
    HELD: "has {}",
}
REMEDY = (
    "Every rank must do the same between two steps. If a value of one rank decides it (a loss, a "
    "metric, whether a gradient is finite), make it equal first: torch.distributed.all_reduce."
)


class LoopRecord:
    """What happened to one model on this rank since ranks last compared it."""

    def __init__(self, share: int = 0) -> None:
        """`share`: the ranks with equal numbers must do the same; a pipeline has one per worker."""
        self.share, self.interval, self.begun = share, 0, Counter[str]()
        self.waits_since: float | None = None
        self._events: deque[Event] = deque(maxlen=KEPT)
        if dist.get_world_size() > 1 and not launch.alone():
            here = launch.current()
            here.loops[here.meetings] = self

    def note(self, kind: str, **settings: Any) -> None:
        """Record something that begins now."""
        self._events.append((kind, settings))
        self.begun[kind] += 1

    def note_forward(self, synchronises: bool, slots: Iterable[Any]) -> None:
        """Record the step that is about to be compared, and whether parameters have gradients."""
        has = any(slot.parameter.grad is not None for slot in slots)
        self._events.append((FORWARD, {"way": WAY[synchronises]}))
        self._events.append((HELD, {"way": "gradients" if has else "no gradients"}))

    def note_microbatches(self, microbatches: int) -> None:
        """Record how the step that is about to be compared divides its batch."""
        self._events.append((MICROBATCHES, {"microbatches": microbatches}))

    def note_backward(self, synchronises: bool) -> None:
        """Record a backward, under no_sync() or not."""
        self.note(BACKWARD, way=WAY[synchronises])

    def note_clip(self, max_norm: float, norm_type: float) -> None:
        """Record the clipping of all gradients."""
        self.note(CLIP, max_norm=_plain(max_norm), norm_type=_plain(norm_type))

    def note_loss(self, gradient: torch.Tensor) -> None:
        """Record the gradient of the loss; one on a GPU would have to be waited for."""
        if gradient.device.type == "cpu" and type(gradient) is torch.Tensor and not gradient.dim():
            self.note(LOSS, gradient=gradient.item())

    def note_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Record an optimizer's step."""
        settings: dict[str, Any] = {"type": type(optimizer).__name__}
        names = optimizer.defaults.keys() - WAYS
        for place, group in enumerate(optimizer.param_groups[:GROUPS]):
            of = f" of group {place}" if place else ""
            for name in sorted(names & group.keys(), key=str):
                if (value := _plain(group[name])) is not None:
                    settings[f"{name}{of}"] = value
        self.note(STEP, **settings)

    def clear(self) -> None:
        """Begin again; all ranks call it."""
        self._events.clear()
        self.interval, self.begun = self.interval + 1, Counter()

    @property
    def events(self) -> list[Event]:
        """The recorded events, in order."""
        return list(self._events)

    def text(self) -> str:
        """Return the events as a text that small differences of numbers rarely change."""
        return ";".join(
            f"{kind}:{','.join(f'{key}={_short(value)}' for key, value in settings.items())}"
            for kind, settings in self._events
        )


def _plain(value: Any) -> Any:
    """Return a setting that can be compared; None for others, and for tensors on a GPU."""
    if isinstance(value, torch.Tensor):
        is_known = type(value) is torch.Tensor and value.device.type == "cpu" and not value.dim()
        return value.item() if is_known else None
    if isinstance(value, (tuple, list)):
        parts = tuple(map(_plain, value))
        return None if None in parts else parts
    return value if isinstance(value, (bool, int, float, str)) else None


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({' '.join(map(_short, value))})"
    return f"{value:.4g}" if isinstance(value, (int, float)) else str(value)


def difference(shares: Sequence[int], events: Sequence[Sequence[Event]]) -> str:
    """Say how a rank differs from the first rank of its share; empty if none does."""
    first: dict[int, int] = {}
    for rank, (share, mine) in enumerate(zip(shares, events, strict=True)):
        other = first.setdefault(share, rank)
        if text := _between(rank, mine, other, events[other]):
            return text
    return ""


def _between(rank: int, mine: Sequence[Event], other: int, theirs: Sequence[Event]) -> str:
    for kind in (MICROBATCHES, FORWARD, BACKWARD, LOSS, CLIP, STEP, HELD):
        here, there = ([s for k, s in events if k == kind] for events in (mine, theirs))
        for ours, its in zip(here, there, strict=False):
            if text := _settings(kind, rank, ours, other, its):
                return text
        if len(here) != len(there):
            made = _number(len(here), kind)
            return f"rank {rank} made {made}, rank {other} made {len(there) or 'none'}"
    if [kind for kind, _ in mine] != [kind for kind, _ in theirs]:
        return f"rank {rank} ordered backwards, clipping and optimizer steps unlike rank {other}"
    return ""


def _number(count: int, kind: str) -> str:
    return f"{count or 'no'} {kind}{'s' if count > 1 else ''}"


def _settings(
    kind: str, rank: int, ours: Mapping[str, Any], other: int, its: Mapping[str, Any]
) -> str:
    for name in sorted({*ours, *its}, key=lambda name: name != "type"):
        a, b = ours.get(name), its.get(name)
        if _is_close(a, b):
            continue
        if name == "type":
            return f"rank {rank} stepped {a}, rank {other} stepped {b}"
        verb = VERBS.get(kind, f"stepped {ours.get('type')} with {{}}")
        if kind in (FORWARD, BACKWARD, HELD):
            again = "has " if kind == HELD else ""
            return f"rank {rank} {verb.format(a)}, rank {other} {again}{b}"
        joint = "from" if kind == LOSS else "with"
        return f"rank {rank} {verb.format(_told(name, a))}, rank {other} {joint} {_told(name, b)}"
    return ""


def _told(name: str, value: Any) -> str:
    return f"no {name}" if value is None else f"{name} {_shown(value)}"


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _is_close(a: Any, b: Any) -> bool:
    """Whether two settings are equal up to rounding; one that a rank cannot read equals all."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_is_close, a, b))
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        is_finite = math.isfinite(a) and math.isfinite(b)
        return math.isclose(a, b, rel_tol=CLOSE) if is_finite else str(a) == str(b)
    return bool(a == b)
