"""Differences between two plans of one model, in decisions and costs, as values that `show` renders.

A plan of either kind has an `Outline` of names with texts and figures.  Because outlines are compared, a
plan without stages can be compared with a pipeline.  `Plan.diff` and `PipelinePlan.diff` call this.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from autopar.errors import InputError, PlanError
from autopar.plans.estimate import Estimate
from autopar.plans.plan_data import PlanData
from autopar.request.constraints import Constraint
from autopar.utils.shown import Shown
from autopar.utils.suggest import hint

Texts = Mapping[str, str]
Kind = Literal["time", "communication", "memory"]
COMPUTE: tuple[Kind, str] = ("time", "compute")
SENT: tuple[Kind, str] = ("time", "communication, exposed")
"""Present whenever communication figures are present."""
IDLE = "idle on worker"
"""Prefix of the idle time figures of pipelines."""
Figures = dict[tuple[Kind, str], float]
Subject = Literal["plan", "stage", "parameter", "operator", "recompute"]
FEW = 3


@dataclass(frozen=True, slots=True)
class Change:
    """One difference; `before` or `after` is "" if a plan does not have the item.

    For parameters `what` is "stored" or "in the step"; for stages it is "stage", elsewhere "".
    """

    subject: Subject
    name: str
    what: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Figure:
    """A predicted figure of both plans (seconds, bytes, or a share); None if a plan lacks it."""

    kind: Kind
    name: str
    before: float | None
    after: float | None

    @property
    def more(self) -> float | None:
        """The difference `after - before`; None if a plan lacks the figure."""
        if self.before is None or self.after is None:
            return None
        return self.after - self.before


@dataclass(frozen=True)
class Difference(Shown):
    """Two plans of one model, by their digests."""

    model: str
    before: str
    after: str
    changes: tuple[Change, ...]
    figures: tuple[Figure, ...]

    def figure(self, name: str) -> Figure:
        """Return a figure by name, such as ``step`` or ``peak``; raise `InputError` if there is none."""
        found = next((figure for figure in self.figures if figure.name == name), None)
        if found is None:
            names = [figure.name for figure in self.figures]
            raise InputError(f"The plans have no figure {name!r}.{hint(str(name), names)}")
        return found

    def of(self, subject: Subject) -> tuple[Change, ...]:
        """Return the changes of one subject."""
        return tuple(change for change in self.changes if change.subject == subject)


@dataclass(frozen=True)
class Outline:
    """A plan of either kind as names and texts."""

    model: str
    digest: str
    shapes: Mapping[str, tuple[int, ...]]
    facts: Texts
    stages: Texts
    stored: Texts
    used: Texts
    operators: Texts
    recompute: Texts
    figures: Figures = field(default_factory=dict)


class Outlined(Protocol):
    """A plan of either kind."""

    @property
    def outline(self) -> Outline: ...


def outline_of(other: Outlined) -> Outline:
    """Return a plan's outline; raise `InputError` if the argument is not a plan."""
    found = getattr(other, "outline", None)
    if not isinstance(found, Outline):
        raise InputError(
            f"A plan is compared with another plan, not with {other!r}: pass what autopar.plan gave, a "
            "model's .plan, or a file read by load."
        )
    return found


def difference(before: Outline, after: Outline) -> Difference:
    """Return the differences; raise `PlanError` if the plans are of different models."""
    _same_model(before, after)
    both_have_stages = bool(before.stages and after.stages)
    found = (
        *_changes("plan", "", before.facts, after.facts),
        *(_changes("stage", "stage", before.stages, after.stages) if both_have_stages else ()),
        *_changes("parameter", "stored", before.stored, after.stored),
        *_changes("parameter", "in the step", before.used, after.used),
        *_changes("operator", "", before.operators, after.operators),
        *_changes("recompute", "", before.recompute, after.recompute),
    )
    keys = dict.fromkeys((*before.figures, *after.figures))
    figures = tuple(Figure(*key, _value(before, key), _value(after, key)) for key in keys)
    return Difference(before.model, before.digest, after.digest, found, figures)


def _value(of: Outline, key: tuple[Kind, str]) -> float | None:
    """Return a figure; a missing communication figure is 0 if the plan has any communication figures."""
    speaks = key[0] == "communication" and SENT in of.figures
    return of.figures.get(key, 0.0 if speaks else None)


def outline(plan: PlanData) -> Outline:
    """Return the outline of a plan without stages."""
    facts = {
        "graph": plan.graph_digest,
        "mesh": str(plan.mesh),
        "stages": "1",
        "hardware": plan.hardware,
        "operator times": "modelled" if plan.times is None else str(plan.times),
        "preset": plan.preset or "none",
        "optimizer": plan.optimizer,
        "precision": plan.precision,
        **asked_of(plan.asked.memory_limit, plan.asked.constraints),
        "padding": "; ".join(f"{p.leaf} to {p.pad.to}" for p in plan.padding) or "none",
        "prefetch": "the next block's weights" if plan.prefetch else "none",
        "compression": "none" if plan.compression is None else str(plan.compression),
    }
    return Outline(
        plan.model, plan.digest, {p.name: p.shape for p in plan.parameters}, facts, {},
        *types_of(plan), dict(plan.recompute_of), figures_of(plan.estimate),
    )  # fmt: skip


def asked_of(memory_limit: float | None, constraints: Iterable[Constraint]) -> Texts:
    """Return the user's request as texts."""
    return {
        "memory limit": "none" if memory_limit is None else f"{memory_limit:.0f} bytes",
        "constraints": "; ".join(dict.fromkeys(map(str, constraints))) or "none",
    }


def types_of(plan: PlanData) -> tuple[Texts, Texts, Texts]:
    """Return the shardings of parameters at rest, of parameters in the step, and of operators."""
    again = gathered_again(plan)
    leaves = {p.name: f"{p.leaf}{', gathered again' * (p.name in again)}" for p in plan.parameters}
    operators = {c.node: str(c.sharding) for c in plan.choices if c.sharding.inputs}
    return {p.name: str(p.stored) for p in plan.parameters}, leaves, operators


def gathered_again(plan: PlanData) -> frozenset[str]:
    """Return the parameters that the backward gathers again."""
    again = {conversion.tensor for conversion in plan.conversions if conversion.regather}
    return frozenset(p.name for p in plan.parameters if re.sub(r"\W", "_", p.name) in again)


def figures_of(e: Estimate) -> Figures:
    """Return seconds by kind, communication by axis and collective, and bytes by kind."""
    sent: defaultdict[str, float] = defaultdict(float)
    for flow in e.flows:
        sent[f"{flow.collective} on {flow.axis}"] += flow.seconds
    return {
        ("time", "step"): e.step_s,
        COMPUTE: e.compute_s,
        **_parts_of(e),
        SENT: e.exposed_s,
        ("time", "communication, hidden"): e.hidden_s,
        **{("communication", name): seconds for name, seconds in sorted(sent.items())},
        ("memory", "peak"): float(e.memory_nbytes),
        ("memory", "parameters"): float(e.parameter_nbytes),
        ("memory", "gradients"): float(e.gradient_nbytes),
        ("memory", "optimizer"): float(e.optimizer_nbytes),
        ("memory", "activations"): float(e.in_flight * e.activation_nbytes),
        ("memory", "working set"): float(e.working_nbytes),
    }


def _parts_of(e: Estimate) -> Figures:
    """Return compute by phase, if the plan recorded it."""
    if e.parts is None:
        return {}
    named = {
        "forward": e.parts.forward_s, "backward": e.parts.backward_s, "update": e.parts.update_s,
    }  # fmt: skip
    return {("time", f"compute, {name}"): seconds for name, seconds in named.items()}


def _changes(subject: Subject, what: str, before: Texts, after: Texts) -> Iterator[Change]:
    for name in dict.fromkeys((*before, *after)):
        one, other = before.get(name, ""), after.get(name, "")
        if one != other:
            yield Change(subject, name, what, one, other)


def _same_model(before: Outline, after: Outline) -> None:
    """Raise `PlanError` unless both have the same parameters."""
    faults = []
    if before.model != after.model:
        faults.append(f"the first is for {before.model}, the second for {after.model}")
    for word, one, other in (("first", before, after), ("second", after, before)):
        only = sorted(one.shapes.keys() - other.shapes.keys())
        if only:
            more = f" and {len(only) - FEW} more" if len(only) > FEW else ""
            faults.append(f"only the {word} has {', '.join(only[:FEW])}{more}")
    common = before.shapes.keys() & after.shapes.keys()
    for name in sorted(n for n in common if before.shapes[n] != after.shapes[n])[:FEW]:
        faults.append(
            f"{name} is {_spelled(before.shapes[name])} in the first, "
            f"{_spelled(after.shapes[name])} in the second"
        )
    if faults:
        raise PlanError(
            "These are plans of two models:\n- " + "\n- ".join(faults) + "\nCompare plans of one."
        )


def _spelled(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "a scalar"
