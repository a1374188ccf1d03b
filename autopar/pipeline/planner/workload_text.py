"""Converts workloads to and from JSON, and to readable text."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter, ValidationError

from autopar.errors import PlanError
from autopar.pipeline.planner.workload import Layer, Option, Pool, Tensor, Workload
from autopar.utils.io import first_fault


def to_json(workload: Workload) -> str:
    """Return JSON text that `from_json` reads; defaults and infinite limits are left out."""
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
    """Return the checked workload; raise `PlanError` with the location of the first fault."""
    try:
        return _ADAPTER.validate_json(text).check()
    except ValidationError as error:
        raise PlanError(f"this is not a workload: {first_fault(error)}") from None


def to_text(workload: Workload) -> str:
    """Return text with a line per pool and layer."""
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


_ADAPTER: TypeAdapter[Workload] = TypeAdapter(Workload)
