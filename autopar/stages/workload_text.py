"""Workloads as JSON, and as lines to read."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from autopar.errors import PlanError
from autopar.stages.workload import Layer, Option, Pool, Tensor, Workload


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class _Option(_Strict):
    name: str = ""
    pool: int = 0
    devices: int = 1
    forward_s: float = 0.0
    input_grad_s: float = 0.0
    weight_grad_s: float = 0.0
    rest_nbytes: float = 0.0
    kept_nbytes: float = 0.0
    working_nbytes: float = 0.0
    reduced_nbytes: float = 0.0
    resent: tuple[tuple[int, float], ...] = ()


class _Layer(_Strict):
    name: str
    options: tuple[_Option, ...]
    group: str | None = None
    backward: bool = False


class _Tensor(_Strict):
    source: int
    targets: tuple[int, ...]
    nbytes: float = 0.0
    round_trips: int = 1
    seconds: float | None = None


class _Pool(_Strict):
    name: str
    count: int
    memory_nbytes: float | None = None
    bytes_per_s: float | None = None
    latency_s: float = 0.0
    pays_transfers: bool = True
    replicas: bool = True


class _Workload(_Strict):
    layers: tuple[_Layer, ...]
    tensors: tuple[_Tensor, ...] = ()
    pools: tuple[_Pool, ...]
    microbatches: int | None = None
    reduce_rounds: float = 2.0


def to_json(workload: Workload) -> str:
    """What is at its default is left out; a limit that is left out is infinite."""
    plain = {
        "layers": [
            {
                **_short(layer, Layer("", ())),
                "options": [_short(o, Option()) for o in layer.options],
            }
            for layer in workload.layers
        ],
        "tensors": [_short(tensor, Tensor(-1, ())) for tensor in workload.tensors],
        "pools": [_short(pool, Pool("", -1)) for pool in workload.pools],
        "microbatches": workload.microbatches,
        "reduce_rounds": workload.reduce_rounds,
    }
    return json.dumps(plain, allow_nan=False)


def from_json(text: str) -> Workload:
    """The workload, checked; raise `PlanError` with the place of the first mistake."""
    try:
        read = _Workload.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise PlanError(f"this is no workload: {place}: {first['msg']}") from None
    layers = tuple(
        Layer(l.name, tuple(Option(**o.model_dump()) for o in l.options), l.group, l.backward)
        for l in read.layers
    )
    pools = tuple(
        Pool(**{name: v for name, v in p.model_dump().items() if v is not None}) for p in read.pools
    )
    tensors = tuple(Tensor(**tensor.model_dump()) for tensor in read.tensors)
    return Workload(layers, tensors, pools, read.microbatches, read.reduce_rounds).check()


def to_text(workload: Workload) -> str:
    """A line per pool and layer."""
    lines = [
        f"pool {p.name}: {p.count} devices, {_size(p.memory_nbytes)} each" for p in workload.pools
    ]
    for index, layer in enumerate(workload.layers):
        ways = ", ".join(
            f"{workload.pools[o.pool].name} x{o.devices} {o.name} {o.seconds:.4g} s".replace(
                "  ", " "
            )
            for o in layer.options
        )
        reads = sorted(t.source for t in workload.tensors if index in t.targets)
        lines.append(f"{index} {layer.name}{f' after {reads}' if reads else ''}: {ways}")
    return "\n".join(lines)


def _short(value: Any, default: Any) -> dict[str, Any]:
    plain, usual = asdict(value), asdict(default)
    return {n: v for n, v in plain.items() if v != usual[n] and v != math.inf}


def _size(nbytes: float) -> str:
    return "any memory" if nbytes == math.inf else f"{nbytes / 2**30:.4g} GiB"
