"""The results of reading and of writing a tool's configuration, and what readers have in common."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autopar.errors import InputError
from autopar.request.configurations.configuration import Configuration
from autopar.request.optimizers import is_fused

PARALLEL = re.compile(
    r"parallel|pipeline|virtual|shard|zero|fsdp|ddp|offload|recompute|activation_?ckpt|micro_?batch"
    r"|batch_?size|expert|context|overlap|float8|fp8|fp4|mxfp|quantiz|cuda_?graph|accumulat|world_?size"
)
"""Parts of keys that tell of parallelism, precision or memory."""
OFF = frozenset(["none", "", "0", "1", "-1", "no", "false", "default", "auto", "[]", "{}"])
"""Values, as text, by which a key has no effect."""
PRECISIONS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "no": None}
FUSED = "AdamW(fused=True)"
OPTIMIZERS = {"adam": FUSED, "adamw": FUSED, "fusedadam": FUSED, "sgd": "SGD"}
"""Optimizers by the tools' names.  Their Adam decays weights as AdamW does, and is one fused kernel."""


@dataclass(frozen=True)
class Read:
    """A configuration that was read; `said` is what autopar does not take over, in sentences."""

    configuration: Configuration
    said: tuple[str, ...] = ()


@dataclass(frozen=True)
class Written:
    """The text of a tool's file; `said` is what the tool could not express, in sentences."""

    text: str
    said: tuple[str, ...] = ()


def flattened(content: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested values with their keys joined by dots."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def whole(value: object, key: str, source: str, least: int = 1) -> int:
    """Return a value as a whole number; raise `InputError` if it is none, or less than `least`."""
    try:
        found = int(str(value), 10)
    except ValueError:
        found = least - 1
    if found < least:
        raise InputError(f"{source}: {key} is {value!r}; write a whole number, at least {least}.")
    return found


def left_out(
    given: Iterable[tuple[str, object]],
    known: Collection[str],
    reasons: Mapping[str, str],
) -> Iterator[str]:
    """Yield a sentence for each key that would change how the model is divided, and is not taken over.

    `known` are the keys that a reader reads, or that change nothing; `reasons` say why others are left
    out.
    """
    for key, value in given:
        if key in known or str(value).lower() in OFF:
            continue
        if key in reasons:
            yield f"{key} is left out: {reasons[key]}."
        elif PARALLEL.search(key.lower().replace("-", "_")):
            yield f"{key} = {value!r} is not known to autopar, and is left out."


def optimizer_of(name: object) -> tuple[str | None, tuple[str, ...]]:
    """Return the class of ``torch.optim`` that an optimizer's name means, and what there is to say."""
    if name is None:
        return None, ()
    known = OPTIMIZERS.get(str(name).lower())
    if known is None:
        return None, (f"The optimizer {name} is left out: AdamW is priced in its place.",)
    return known, ()


def hosts_of(devices: int, host: int) -> int:
    """Return the least number of hosts with equally many devices, at most `host` each."""
    return next(count for count in range(-(-devices // host), devices + 1) if devices % count == 0)


def said_of_optimizer(optimizer: str | None) -> Iterator[str]:
    """Yield what a file does not express of an optimizer, which is fused in the tools."""
    if optimizer is not None and optimizer.startswith("AdamW") and not is_fused(optimizer):
        yield "AdamW is one fused kernel there."
    elif optimizer is not None and not optimizer.startswith(("AdamW", "SGD")):
        yield f"The optimizer {optimizer} is left out."


def said_of_experts(configuration: Configuration, tool: str) -> Iterator[str]:
    """Yield what the file of a tool without a key for expert parallelism does not express."""
    if configuration.ep > 1:
        yield (
            f"{tool}'s file does not divide experts among {configuration.ep} ranks; the model's code "
            "does, or every data-parallel rank has all of them."
        )
