"""Published steps of training: the tables of facts, one `Row` for each, and the machines they ran on."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from cost_models.hardware import Hardware, load

FOLDER = Path(__file__).parent
ADAPTERS = {"jean zay": ("Omni-Path 100", 6.25e9), "vtrain": ("InfiniBand HDR", 12.5e9)}
"""Network and bytes per second of a GPU where eight share four adapters of 100 or 200 Gbit/s."""
PROFILES = {
    "selene": "a100:megatron",
    "vtrain": "a100:megatron",
    "jean zay": "a100:megatron_blocking",
    "mosaic a100": "a100",
    "mosaic h100": "h100",
}
"""The profile of a machine's GPUs, in the mode of its software."""


@dataclass(frozen=True)
class Row:
    """One line of the tables of facts: a model, its parallelism, and the seconds of a step.

    `attention` is "sdpa" for a fused kernel; "": products and a fused softmax, as Megatron has them.
    """

    name: str
    source: str
    machine: str
    hidden: int
    layers: int
    heads: int
    vocabulary: int
    gpus: int
    tp: int
    pp: int
    dp: int
    microbatch: int
    batch: int
    virtual: int
    recompute: str
    sequence_parallel: bool
    zero: int
    gradients: str
    partition: str
    seconds: float | None
    memory_gb: float | None = None
    sequence: int = 2048
    attention: str = ""
    dropout: float = 0.1

    @property
    def table(self) -> str:
        """The source by which figures are reported."""
        if self.machine == "selene":
            return self.name.partition(" ")[0]
        if self.machine == "vtrain":
            return "vtrain, one host" if self.gpus <= 8 else "vtrain, hosts"
        return {"jean zay": "bloom", "mosaic a100": "mpt a100", "mosaic h100": "mpt h100"}[
            self.machine
        ]

    @property
    def model(self) -> tuple[object, ...]:
        """What rows of one model have in common."""
        return (self.table, self.hidden, self.heads, self.layers, self.vocabulary)

    @property
    def problem(self) -> tuple[object, ...]:
        """What configurations that one may choose from have in common: model, batch and devices."""
        return (
            self.table,
            self.hidden,
            self.heads,
            self.layers,
            self.sequence,
            self.gpus,
            self.batch,
        )

    @property
    def microbatches(self) -> int:
        """Of a pipeline."""
        return self.batch // (self.microbatch * self.dp)

    @property
    def padded_vocabulary(self) -> int:
        """So that every tensor-parallel rank has a multiple of 128 rows."""
        each = 128 * self.tp
        return -(-self.vocabulary // each) * each

    @property
    def sizes(self) -> tuple[int, ...]:
        """Layers of every stage."""
        stages = self.pp * self.virtual
        if self.partition == "slots":
            each = (self.layers + 2) // stages
            return (each - 1, *(each,) * (stages - 2), each - 1)
        each = -(-self.layers // stages)
        return tuple(max(0, min(each, self.layers - each * stage)) for stage in range(stages))


@cache
def rows() -> tuple[Row, ...]:
    """All tables."""
    first = json.loads((FOLDER / "published_rows.json").read_text())["rows"]
    found = [Row(**row) for row in first]
    for table in ("vtrain", "mpt_a100", "mpt_h100"):
        read = json.loads((FOLDER / f"published_rows_{table}.json").read_text())
        found += [_row(read, line) for line in read["rows"]]
    return tuple(found)


def _row(table: dict[str, Any], line: list[Any]) -> Row:
    """A line of a table whose columns are named once."""
    facts = {**table["common"], **dict(zip(table["columns"], line, strict=True))}
    if "tokens_per_s" in facts:
        facts["dp"] = facts["gpus"]
        facts["batch"] = facts["gpus"] * facts["microbatch"] * facts["accumulated"]
        facts["seconds"] = facts["batch"] * facts["sequence"] / facts["tokens_per_s"]
        facts["name"] = (f"mpt {facts['model']} of {facts['sequence']}, {facts['gpus']} GPUs, "
                         f"{facts['accumulated']} x {facts['microbatch']}")  # fmt: skip
    else:
        facts["name"] = (
            f"vtrain {facts['hidden']} x {facts['layers']}, batch {facts['batch']}, microbatch "
            f"{facts['microbatch']}, {facts['tp']} x {facts['pp']} x {facts['dp']}"
        )
    facts["name"] += f" ({facts['machine']})"
    known = {field.name for field in fields(Row)}
    return Row(source=table["source"], **{k: v for k, v in facts.items() if k in known})


@cache
def machine(name: str) -> Hardware:
    """The shipped profile of its GPUs in the mode of its software, with its network."""
    found = load(PROFILES[name])
    if name not in ADAPTERS:
        return replace(found, tiers=())
    kind, speed = ADAPTERS[name]
    return replace(
        found, inter_host=replace(found.inter_host, bytes_per_s=speed, kind=kind), tiers=()
    )
