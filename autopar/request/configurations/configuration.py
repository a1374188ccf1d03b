"""A configuration of parallel training, in the terms that Megatron-LM, torchtitan and others share."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from autopar.errors import InputError
from autopar.pipeline.schedules import SCHEDULES
from autopar.request.layers import Layers
from autopar.utils.messages import argument, quoted

Recomputation = Literal["none", "attention", "selective", "full"]
"""What the backward computes again: nothing; attention alone, as Megatron-LM's ``selective`` does; all
but matrix products and attention; or everything."""
RECOMPUTATIONS: tuple[Recomputation, ...] = get_args(Recomputation)
ZERO = range(4)
"""Stages of ZeRO (Rajbhandari et al. 2020); 0 replicates everything."""
PLAIN, INTERLEAVED = "1f1b", "interleaved"
EQUAL = Layers()


@dataclass(frozen=True)
class Configuration:
    """How training is divided among devices.  None is what is not stated; `settled` derives it.

    - `tp`, `pp`, `dp`, `cp`: ranks of tensor, pipeline, data and context parallelism; their product is
      `devices`.  `ep`: ranks of expert parallelism, which are among those of `dp` and `cp`.
    - `replicas`: groups of data-parallel ranks that each shard for themselves (hybrid sharding).
    - `virtual`: stages on each pipeline rank.  `layers`: the model's layers in each stage.
    - `microbatch`: samples of one data-parallel rank in a microbatch; `batch`: samples of all ranks in a
      step; `accumulation`: microbatches of a step.
    - `schedule`: its name in `autopar.pipeline.schedules`.
    - `zero`: the stage of ZeRO.
    - `sequence_parallel`: tensor-parallel ranks also split activations along the sequence.
    - `recompute`: see `Recomputation`.  `precision`: as in `autopar.request.options.Precision`.
    - `optimizer`: a class in ``torch.optim``.  `sequence`: tokens of a sample.
    """

    tp: int = 1
    pp: int = 1
    dp: int | None = None
    cp: int = 1
    ep: int = 1
    replicas: int = 1
    virtual: int | None = None
    layers: Layers = EQUAL
    microbatch: int | None = None
    batch: int | None = None
    accumulation: int | None = None
    schedule: str | None = None
    zero: int = 0
    sequence_parallel: bool = False
    recompute: Recomputation = "none"
    precision: str | None = None
    optimizer: str | None = None
    sequence: int | None = None
    devices: int | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            is_count = each.name not in NOT_COUNTS and value is not None
            if is_count and (type(value) is not int or value < 1):
                raise InputError(f"{argument(each.name, value)}: pass a whole number, at least 1.")
        if self.zero not in ZERO:
            raise InputError(f"{argument('zero', self.zero)}: ZeRO has the stages 0, 1, 2 and 3.")
        if self.recompute not in RECOMPUTATIONS:
            raise InputError(
                f"{argument('recompute', self.recompute)} is unknown: pass "
                f"{', '.join(map(quoted, RECOMPUTATIONS))}."
            )

    def stating(self, **values: Any) -> Configuration:
        """Return the configuration with these values in place of its own; None leaves a value.

        Values of its own that followed from those replaced are derived anew.
        """
        given = {name: value for name, value in values.items() if value is not None}
        left: set[str] = set()
        if given.keys() & {"tp", "pp", "cp", "devices"} and (self.devices or "devices" in given):
            left.add("dp")
        if "dp" in given:
            left.add("devices")
        is_whole = bool(self.batch and self.microbatch)
        if given.keys() & {"microbatch", "batch", "dp"} or (is_whole and left):
            left.add("accumulation")
        changed: dict[str, Any] = {**dict.fromkeys(left - given.keys()), **given}
        return replace(self, **changed)

    @property
    def microbatches(self) -> int:
        """Microbatches of a step, once settled."""
        assert self.accumulation is not None
        return self.accumulation

    def settled(self, samples: int | None = None) -> Configuration:
        """Return the configuration with every value stated; `samples` is the model's own batch.

        Raise `InputError` if values contradict each other, or too few are stated.
        """
        return self._with_ranks()._with_schedule()._with_batch(samples)

    def _with_ranks(self) -> Configuration:
        """Return it with `dp` and `devices`."""
        others, dp = self.tp * self.pp * self.cp, self.dp
        parts = f"tp {self.tp}, pp {self.pp} and cp {self.cp}"
        if dp is None and self.devices is None:
            raise InputError(
                f"The number of data-parallel ranks is not stated: pass {argument('dp')} or "
                f"{argument('devices')}."
            )
        if dp is None:
            assert self.devices is not None
            dp, rest = divmod(self.devices, others)
            if rest or not dp:
                raise InputError(
                    f"{self.devices} devices cannot be divided among {parts}: their product, {others}, "
                    f"has to divide {argument('devices')}."
                )
        if self.devices not in (None, others * dp):
            raise InputError(
                f"{parts} with dp {dp} are {others * dp} devices, not {self.devices}: leave "
                f"{argument('dp')} or {argument('devices')} out."
            )
        if dp % self.replicas:
            raise InputError(
                f"{argument('replicas', self.replicas)} does not divide the {dp} data-parallel ranks."
            )
        if dp * self.cp % self.ep:
            raise InputError(
                f"{argument('ep', self.ep)} does not divide the {dp * self.cp} ranks of data and "
                "context parallelism."
            )
        return replace(
            self, dp=dp, devices=others * dp, replicas=self.replicas if self.zero else 1,
            sequence_parallel=self.sequence_parallel and self.tp > 1,
        )  # fmt: skip

    def _with_schedule(self) -> Configuration:
        """Return it with `schedule` and `virtual`; without stages they say nothing."""
        if self.pp == 1:
            return replace(self, schedule=PLAIN, virtual=1)
        virtual = self.virtual or (len(self.layers.stages) // self.pp or None)
        name = self.schedule or (INTERLEAVED if virtual and virtual > 1 else PLAIN)
        if virtual and virtual > 1 and name == PLAIN:
            raise InputError(
                f"{argument('virtual', virtual)}: {PLAIN} has one stage on each rank. Pass "
                f"{argument('schedule', INTERLEAVED)}."
            )
        usual = SCHEDULES.named(name).per_worker or 2
        return replace(self, schedule=name, virtual=virtual or usual)

    def _with_batch(self, samples: int | None) -> Configuration:
        """Return it with `batch`, `microbatch` and `accumulation`."""
        assert self.dp is not None
        batch, each = self.batch or samples, self.microbatch
        if batch is None and each is not None:
            batch = each * self.dp * (self.accumulation or 1)
        if batch is None:
            raise InputError(f"The global batch is not stated: pass {argument('batch')}.")
        if batch % self.dp:
            raise InputError(
                f"A batch of {batch} samples cannot be divided among {self.dp} data-parallel ranks: "
                f"pass another {argument('batch')} or {argument('dp')}."
            )
        of_rank = batch // self.dp
        if each is None:
            parts = self.accumulation or (1 if self.pp == 1 else of_rank)
            each = max(1, of_rank // parts)
        if of_rank % each or self.accumulation not in (None, of_rank // each):
            parts_ = f" in {self.accumulation} microbatches" if self.accumulation else ""
            raise InputError(
                f"A batch of {batch} on {self.dp} data-parallel ranks{parts_} does not consist of "
                f"microbatches of {each}: pass another {argument('batch')} or "
                f"{argument('microbatch')}."
            )
        return replace(self, batch=batch, microbatch=each, accumulation=of_rank // each)


NOT_COUNTS = frozenset(
    ["layers", "schedule", "zero", "sequence_parallel", "recompute", "precision", "optimizer"]
)
"""Fields that are not whole numbers from one."""
