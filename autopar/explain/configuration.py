"""Describes a plan as a configuration that other tools could run: the nearest, and what it lacks.

A mesh axis is one of tensor parallelism if it splits most weights where they are used, one of context
parallelism if it splits rows of attention, else one of data parallelism.  It is one of data parallelism,
too, if tokens travel along it to the experts that it divides.  Its storage at rest and in the step says
which stage of ZeRO it is.  Other tools choose these for all weights alike; a plan that mixes them is
described by what most bytes have.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from autopar.errors import PlanError
from autopar.ir.blocks import block_of
from autopar.ir.graph import Origin
from autopar.ir.placement import P, S
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from autopar.request.configurations.configuration import Configuration, Recomputation
from autopar.request.configurations.exchanged import Read
from autopar.request.layers import Layers
from autopar.request.options import Precision
from autopar.rules.variants import ALONG_SEQUENCE

SEQUENCE = "megatron_sp"
"""Part of the names of presets with sequence parallelism."""
MOST, LEAST = 0.95, 0.5
"""Shares of bytes: with less than `MOST` an axis is mixed; with more than `LEAST` it is of a kind."""


def configuration_of(plan: Plan | PipelinePlan) -> Read:
    """Return the nearest configuration to a plan, with every value stated.

    Its sentences say what the plan has, and the configuration does not.  Raise `PlanError` for a plan of
    an earlier version, which does not record the shapes of its inputs.
    """
    of = _Description(plan)
    values, said = of.values(), tuple(dict.fromkeys(of.said()))
    return Read(Configuration(**values), said)


@dataclass(frozen=True)
class _Axis:
    """What a mesh axis does, as shares of bytes of weights: split where used, at rest, in the step."""

    name: str
    size: int
    flops: float
    used: float
    stored: float
    leaf: float
    kept: float
    """Of the weights that are sharded in the step, the share that the backward does not gather again."""
    rows: bool
    """Whether it splits the rows of causal attention."""
    has_experts: bool
    """Whether tokens travel to experts along it; all shares are then those of the other weights."""

    @property
    def is_tensor(self) -> bool:
        return self.used > LEAST and not self.has_experts

    @property
    def is_context(self) -> bool:
        return self.rows and not self.is_tensor

    @property
    def zero(self) -> int:
        """The stage of ZeRO of a data axis; weights that are kept are gathered once, as with ZeRO-2."""
        if self.leaf > LEAST:
            return 2 if self.kept > LEAST else 3
        return int(self.stored > LEAST)


@dataclass(frozen=True)
class _Description:
    """A plan, with one plan for each of its stages."""

    plan: Plan | PipelinePlan

    @cached_property
    def plans(self) -> tuple[Plan, ...]:
        if isinstance(self.plan, Plan):
            return (self.plan,)
        return tuple(each.plan for each in sorted(self.plan.stages, key=lambda each: each.stage))

    @cached_property
    def axes(self) -> tuple[_Axis, ...]:
        """The axes of the first stage's mesh with several devices."""
        mesh = self.plans[0].mesh
        alike = [plan for plan in self.plans if plan.mesh.sizes == mesh.sizes]
        return tuple(_axis(alike, place) for place, axis in enumerate(mesh) if axis.size > 1)

    @property
    def tensor(self) -> tuple[_Axis, ...]:
        return tuple(axis for axis in self.axes if axis.is_tensor)

    @property
    def context(self) -> tuple[_Axis, ...]:
        return tuple(axis for axis in self.axes if axis.is_context)

    @property
    def data(self) -> tuple[_Axis, ...]:
        return tuple(axis for axis in self.axes if not (axis.is_tensor or axis.is_context))

    @property
    def is_staged(self) -> bool:
        return isinstance(self.plan, PipelinePlan) and len(self.plan.workers) > 1

    @property
    def microbatches(self) -> int:
        return self.plan.microbatches if isinstance(self.plan, PipelinePlan) else 1

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first input of a microbatch."""
        shapes = [shape for plan in self.plans for _, shape in plan.inputs]
        if not shapes:
            raise PlanError(
                "The plan does not record the shapes of its inputs, as it is of an earlier version: "
                "make a new one with `autopar plan`."
            )
        return shapes[0]

    @cached_property
    def layers(self) -> tuple[frozenset[tuple[str, int]], ...]:
        """The layers of each stage: the outermost numbered modules of its parameters."""
        return tuple(
            frozenset(
                where
                for parameter in plan.parameters
                if (where := block_of(Origin(parameter.name))) is not None
            )
            for plan in self.plans
        )

    @property
    def dp(self) -> int:
        """The number of data-parallel ranks."""
        return math.prod(axis.size for axis in self.data)

    @property
    def microbatch(self) -> int:
        """The samples of one data-parallel rank in a microbatch."""
        return max(1, self.shape[0] // self.dp)

    def values(self) -> dict[str, Any]:
        """Return the fields of the configuration."""
        dp, each = self.dp, self.microbatch
        sharded = [axis for axis in (*self.data, *self.context) if axis.zero]
        return {
            "tp": math.prod(axis.size for axis in self.tensor),
            "dp": dp,
            "cp": math.prod(axis.size for axis in self.context),
            "ep": math.prod(axis.size for axis in self.data if axis.has_experts),
            "devices": self.plans[0].mesh.world_size * (self._workers if self.is_staged else 1),
            "replicas": math.prod(a.size for a in self.data if not a.zero) if sharded else 1,
            "zero": max((axis.zero for axis in sharded), default=0),
            "batch": each * dp * self.microbatches,
            "microbatch": each,
            "accumulation": self.microbatches,
            "sequence_parallel": bool(self.tensor) and self._splits_sequence,
            "recompute": self._recompute,
            "precision": self._precision,
            "optimizer": self.plans[0].optimizer,
            "sequence": self.shape[1] if len(self.shape) > 1 else None,
            **(self._stages() if self.is_staged else {"virtual": 1, "schedule": "1f1b"}),
        }

    @property
    def _workers(self) -> int:
        return len(self.plan.workers) if isinstance(self.plan, PipelinePlan) else 1

    def _stages(self) -> dict[str, Any]:
        assert isinstance(self.plan, PipelinePlan)
        schedule, seen = self.plan.schedule, set[tuple[str, int]]()
        counts = []
        for here in self.layers[: schedule.stages]:
            counts.append(len(here - seen))
            seen |= here
        is_even = not counts or not all(counts[1:-1])
        return {
            "pp": self._workers,
            "virtual": max(1, schedule.stages // self._workers),
            "schedule": schedule.name,
            "layers": Layers() if is_even else Layers(tuple(counts)),
        }

    @property
    def _precision(self) -> str | None:
        found = Precision.parse(self.plans[0].precision)
        dtype = found.compute or found.autocast
        return None if dtype is None else str(dtype).removeprefix("torch.")

    @cached_property
    def _modes(self) -> Counter[Recomputation]:
        """The number of layers by what they recompute."""
        found: Counter[Recomputation] = Counter(
            block.recompute for plan in self.plans for block in plan.recompute
        )
        found["none"] = max(0, len(frozenset().union(*self.layers)) - found.total())
        return found

    @property
    def _recompute(self) -> Recomputation:
        return max(self._modes, key=lambda mode: self._modes[mode])

    @cached_property
    def _splits_sequence(self) -> bool:
        """Whether the preset splits the sequence, or most sums are scattered, not all-reduced."""
        if SEQUENCE in self.plans[0].preset:
            return True
        found: Counter[bool] = Counter()
        for plan in self.plans:
            of_tensor = [plan.mesh.names.index(axis.name) for axis in self.tensor]
            weights = {re.sub(r"\W", "_", parameter.name) for parameter in plan.parameters}
            found.update(
                isinstance(conversion.target[conversion.axis], S)
                for conversion in plan.conversions
                if conversion.axis in of_tensor
                and conversion.tensor not in weights
                and conversion.source[conversion.axis] is P
            )
        return found[True] > found[False]

    def said(self) -> Iterator[str]:
        """Yield what the plan has and the configuration does not."""
        yield from self._said_of_axes()
        if isinstance(self.plan, PipelinePlan):
            yield from self._said_of_stages(self.plan)
        if len(+self._modes) > 1:
            modes = ", ".join(f"{count} {mode}" for mode, count in self._modes.items() if count)
            yield f"Layers differ in what they recompute ({modes}); all of them have {self._recompute}."
        if Precision.parse(self.plans[0].precision).autocast is not None:
            yield "The plan chooses dtypes by operator (autocast); the configuration has one for all."
        if Precision.parse(self.plans[0].precision).reduces_low:
            yield (
                "The plan reduces gradients in the precision of the step; the configuration does not "
                "state a dtype of reductions."
            )
        if self.microbatch * self.dp != self.shape[0]:
            yield (
                f"The {self.dp} data-parallel ranks do not divide {self.shape[0]} samples; the "
                f"configuration has {self.microbatch} on each."
            )
        if any(plan.padding for plan in self.plans):
            yield "The plan pads sizes that its axes do not divide."

    def _said_of_axes(self) -> Iterator[str]:
        for axis in self.axes:
            kinds = {
                **({} if axis.has_experts else {"where they are used": axis.used}),
                **({} if axis.is_tensor else {
                    "at rest": axis.stored, "in the step": axis.leaf,
                }),
            }  # fmt: skip
            for where, share in kinds.items():
                if 1.0 - MOST < share < MOST:
                    yield (
                        f"Axis {axis.name} shards {share:.0%} of the weights' bytes {where}; the "
                        f"configuration has {'all' if share > LEAST else 'none'}."
                    )
            if axis.flops <= LEAST and not axis.is_tensor:
                yield (
                    f"Axis {axis.name} ({axis.size} devices) splits {axis.flops:.0%} of the work; it is "
                    "described as data parallelism."
                )
        kinds_ = [axis.is_tensor for axis in self.axes]
        if kinds_ != sorted(kinds_):
            yield "Tensor-parallel ranks are further apart than data-parallel ones, unlike elsewhere."
        if [bool(axis.zero) for axis in self.data] != sorted(bool(a.zero) for a in self.data):
            yield "Weights are sharded among the outer data-parallel ranks and replicated by the inner."

    def _said_of_stages(self, plan: PipelinePlan) -> Iterator[str]:
        if len({worker.mesh.sizes for worker in plan.workers}) > 1:
            sizes = ", ".join(dict.fromkeys(str(worker.mesh) for worker in plan.workers))
            yield f"Stages have different meshes ({sizes}); all of them have the first stage's."
        if any(one & two for one, two in zip(self.layers, self.layers[1:], strict=False)):
            yield "Stages are cut inside layers; the configuration cuts between them."
        if plan.schedule.asynchronous:
            yield f"{plan.schedule.name} updates weights without waiting; 1F1B waits."


def _axis(plans: Sequence[Plan], place: int) -> _Axis:
    """Return what an axis does, over all stages with this mesh."""
    total: Counter[str] = Counter()
    has_experts = any(
        choice.sharding.variants[place] == "expert_dispatch"
        for plan in plans
        for choice in plan.choices
    )
    for plan in plans:
        share = plan.shares[place] if plan.shares else None
        gathered = {each.tensor for each in plan.conversions if each.axis == place}
        for parameter in plan.parameters:
            is_whole = re.sub(r"\W", "_", parameter.name) not in gathered
            if has_experts and is_whole and isinstance(parameter.leaf[place], S):
                continue  # the experts on this rank
            size = math.prod(parameter.shape)
            total["all"] += size
            total["used"] += size * (share.used if share else 0.0)  # type: ignore[assignment]
            total["stored"] += size * isinstance(parameter.stored[place], S)
            in_step = size * isinstance(parameter.leaf[place], S)
            total["leaf"] += in_step
            total["kept"] += in_step * (not parameter.regather)
    axis, whole = plans[0].mesh.axes[place], total["all"] or 1
    flops = [plan.shares[place].flops for plan in plans if plan.shares]
    return _Axis(
        axis.name,
        axis.size,
        sum(flops) / len(flops) if flops else 0.0,
        total["used"] / whole,
        total["stored"] / whole,
        total["leaf"] / whole,
        total["kept"] / (total["leaf"] or 1),
        any(c.sharding.variants[place] in ALONG_SEQUENCE for p in plans for c in p.choices),
        has_experts,
    )
