"""Reads and writes TOML files of torchtitan.

The keys are those of its ``JobConfig``; those of older versions, which had the degrees in ``[training]``
and ``[experimental]``, are read as well.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autopar.errors import InputError
from autopar.request.configurations.configuration import Configuration, Recomputation
from autopar.request.configurations.exchanged import (
    FUSED,
    Read,
    Written,
    flattened,
    left_out,
    optimizer_of,
    said_of_optimizer,
    whole,
)
from autopar.request.layers import Layers
from autopar.request.optimizers import is_fused

SCHEDULES = {
    "1F1B": "1f1b", "GPipe": "gpipe", "Interleaved1F1B": "interleaved",
    "ZBVZeroBubble": "zb-v", "DualPipeV": "dualpipe-v",
}  # fmt: skip
"""autopar's schedules by torchtitan's names."""
NEAREST = {"LoopedBFS": "interleaved", "InterleavedZeroBubble": "interleaved"}
"""The closest of autopar's schedules to those that it does not have."""
SEVERAL = ("interleaved", "zb-v", "dualpipe-v")
"""Schedules with two stages on each rank, if the file does not divide the layers."""
PLACES = {
    "tp": ("parallelism.tensor_parallel_degree", "training.tensor_parallel_degree"),
    "pp": ("parallelism.pipeline_parallel_degree", "experimental.pipeline_parallel_degree"),
    "cp": ("parallelism.context_parallel_degree", "experimental.context_parallel_degree"),
    "ep": ("parallelism.expert_parallel_degree",),
    "sequence": ("training.seq_len",),
}  # fmt: skip
"""Where a file may have a field of a configuration."""
REPLICATE = (
    "parallelism.data_parallel_replicate_degree", "training.data_parallel_replicate_degree",
)  # fmt: skip
SHARD = (
    "parallelism.data_parallel_shard_degree", "training.data_parallel_shard_degree",
    "training.data_parallel_degree",
)  # fmt: skip
LOCAL = ("training.local_batch_size", "training.batch_size")
GLOBAL = "training.global_batch_size"
RESHARD = "parallelism.fsdp_reshard_after_forward"
SCHEDULE = ("parallelism.pipeline_parallel_schedule", "experimental.pipeline_parallel_schedule")
MICROBATCH = "parallelism.pipeline_parallel_microbatch_size"
PARTS = "parallelism.module_fqns_per_model_part"
MODE, OPTION = "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"
OPTIMIZER, IMPLEMENTATION = "optimizer.name", "optimizer.implementation"
PRECISION, CONVERTERS = "training.mixed_precision_param", "model.converters"
REDUCTION = "training.mixed_precision_reduce"
KNOWN = frozenset((
    *(place for places in PLACES.values() for place in places),
    *REPLICATE, *SHARD, *LOCAL, *SCHEDULE, GLOBAL, RESHARD, MICROBATCH, PARTS, MODE, OPTION, PRECISION,
    REDUCTION, "parallelism.disable_loss_parallel",
    "parallelism.enable_loss_parallel", "parallelism.context_parallel_rotate_method",
    "validation.local_batch_size",
))  # fmt: skip
"""Keys that are read, or that change nothing here."""
QUANTISED = ("float8.", "quantize.", "mx.")
"""Tables that refine the converters of the model."""
REASONS = {
    "parallelism.enable_async_tensor_parallel":
        "communication of tensor parallelism is not overlapped with products",
    "training.enable_cpu_offload": "nothing is kept in the host's memory",
    **dict.fromkeys(
        (f"parallelism.pipeline_parallel_{what}" for what in (
            "layers_per_stage", "split_points", "first_stage_less_layers", "last_stage_less_layers",
        )),
        f"stages get equal numbers of layers; {PARTS.partition('.')[2]} is read",
    ),
}  # fmt: skip
"""Why autopar leaves a key out."""


def read(text: str, source: str) -> Read:
    """Return the configuration in a TOML file."""
    try:
        content = dict(flattened(tomllib.loads(text)))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source} is not a TOML file: {error}.") from None
    values: dict[str, Any] = {
        field: value
        for field, places in PLACES.items()
        if (value := _number(content, places, source)) is not None
    }
    pp = values.get("pp", 1)
    values |= {**_ranks(content, pp, source), **_batch(content, pp, source)}
    said: list[str] = []
    if pp > 1:
        values |= _stages(content, pp, source, said)
    optimizer, of_optimizer = optimizer_of(content.get(OPTIMIZER))
    if optimizer == FUSED and content.get(IMPLEMENTATION, "fused") != "fused":
        optimizer = "AdamW"
    configuration = Configuration(
        **values,
        sequence_parallel=values.get("tp", 1) > 1,
        recompute=_recompute(content, source, said),
        precision=str(content.get(PRECISION, "bfloat16")),
        optimizer=optimizer,
    )
    said += of_optimizer
    if content.get(CONVERTERS):
        said.append(
            f"{CONVERTERS} = {content[CONVERTERS]!r} is left out: products and gathers are priced in "
            "the precision of the other operators."
        )
    if content.get(REDUCTION, "float32") != "float32":
        said.append(
            f"{REDUCTION} = {content[REDUCTION]!r} is left out: gradients are reduced in float32."
        )
    others = [pair for pair in content.items() if not pair[0].startswith(QUANTISED)]
    return Read(configuration, (*said, *left_out(others, KNOWN, REASONS)))


def _number(content: Mapping[str, Any], places: Sequence[str], source: str) -> int | None:
    """Return the value of the first of several keys that the file has."""
    key = next((place for place in places if place in content), None)
    return None if key is None else whole(content[key], key, source)


def _ranks(content: Mapping[str, Any], pp: int, source: str) -> dict[str, Any]:
    """Return data-parallel ranks and ZeRO's stage; by default all other devices shard.

    Weights that are not resharded after the forward are gathered once a step, as with ZeRO-2; stages
    that run several microbatches keep them by default.
    """
    replicas = _number(content, REPLICATE, source) or 1
    key = next((place for place in SHARD if place in content), SHARD[0])
    shards = content.get(key, -1)
    kept = content.get(RESHARD, "default")
    zero = 2 if kept == "never" or (kept == "default" and pp > 1) else 3
    if shards == -1:
        return {"replicas": replicas, "zero": zero}
    shards = whole(shards, key, source)
    ranks = {"dp": replicas * shards}
    return ranks | {"zero": 0} if shards == 1 else ranks | {"replicas": replicas, "zero": zero}


def _batch(content: Mapping[str, Any], pp: int, source: str) -> dict[str, Any]:
    """Return the samples of a microbatch, and the batch or the microbatches of a step."""
    local = _number(content, LOCAL, source)
    each = content.get(MICROBATCH, 1) if pp > 1 else local
    found = {} if each is None else {"microbatch": whole(each, MICROBATCH, source)}
    batch = content.get(GLOBAL, -1)
    if batch != -1:
        return found | {"batch": whole(batch, GLOBAL, source)}
    if local is None or not found:
        return found
    if local % found["microbatch"]:
        raise InputError(
            f"{source}: {MICROBATCH} is {found['microbatch']}, which does not divide the local batch of "
            f"{local}. Write a divisor of it."
        )
    return found | {"accumulation": local // found["microbatch"]}


def _stages(content: Mapping[str, Any], pp: int, source: str, said: list[str]) -> dict[str, Any]:
    """Return schedule and layers of a pipeline; add to `said` what is not taken over."""
    name = str(next((content[place] for place in SCHEDULE if place in content), "1F1B"))
    by_name = {each.lower(): ours for each, ours in {**SCHEDULES, **NEAREST}.items()}
    if name.lower() not in by_name:
        raise InputError(
            f"{source}: {SCHEDULE[0]} {name!r} is unknown; autopar reads "
            f"{', '.join((*SCHEDULES, *NEAREST))}."
        )
    schedule = by_name[name.lower()]
    if name.lower() not in (each.lower() for each in SCHEDULES):
        said.append(f"{SCHEDULE[0]} {name} is left out: the closest schedule here is {schedule}.")
    if content.get(GLOBAL, -1) != -1:
        said.append(
            "torchtitan drains the pipeline after each local batch; here all microbatches of the global "
            "batch run in one schedule."
        )
    found: dict[str, Any] = {"schedule": schedule}
    parts = content.get(PARTS) or []
    if parts:
        counts = tuple(_layers_in(part, source) for part in parts)
        return found | {"layers": Layers(counts), "virtual": max(1, len(counts) // pp)}
    return found | ({"virtual": 2} if schedule in SEVERAL else {})


def _layers_in(part: object, source: str) -> int:
    """Return the number of layers among the names of a stage's modules."""
    if not isinstance(part, list) or not all(isinstance(name, str) for name in part):
        raise InputError(
            f"{source}: {PARTS} has {part!r}; write a list of modules' names for a stage."
        )
    return sum(re.fullmatch(r".*layers\.\d+", name) is not None for name in part)


def _recompute(content: Mapping[str, Any], source: str, said: list[str]) -> Recomputation:
    """Return what is recomputed; add to `said` how it differs."""
    mode = content.get(MODE)
    if mode in ("none", "full"):
        return "none" if mode == "none" else "full"
    if mode is None:
        said.append(f"{MODE} is not stated: torchtitan's default is selective.")
    option = str(content.get(OPTION, "2"))
    if mode in (None, "selective") and option == "1":
        return "full"
    if mode in (None, "selective") and option == "op":
        said.append(
            "torchtitan recomputes every second matrix product too; here none is recomputed."
        )
    elif mode in (None, "selective") and option.isdecimal():
        said.append(
            f"{OPTION} {option} recomputes one of {option} layers fully; the closest here is to "
            "recompute all but matrix products and attention in every layer."
        )
    else:
        said.append(
            f"{source}: {MODE} {mode!r} with {option!r} is left out: the closest here is selective."
        )
    return "selective"


def write(configuration: Configuration, host: int) -> Written:
    """Return a TOML file of the nearest configuration.  It does not say how many devices a host has."""
    c, said = configuration, list[str]()
    local = (c.microbatch or 1) * (c.microbatches if c.pp > 1 else 1)
    lines = [f"# For {c.devices} devices, {host} on each host.", "[training]",
             f"local_batch_size = {local}", f"global_batch_size = {c.batch}"]  # fmt: skip
    lines += [f"seq_len = {c.sequence}"] if c.sequence else []
    lines += _written_precision(c, said)
    lines += ["", "[parallelism]", *_written_ranks(c, said)]
    if c.pp > 1:
        lines += _written_stages(c, said)
    mode = {"none": "none", "attention": "none", "selective": "selective", "full": "full"}
    lines += ["", "[activation_checkpoint]", f'mode = "{mode[c.recompute]}"']
    if c.recompute == "selective":
        lines.append('selective_ac_option = "op"')
        said.append("torchtitan's selective recomputation repeats every second matrix product too.")
    if c.optimizer and c.optimizer.startswith("AdamW"):
        way = "fused" if is_fused(c.optimizer) else "foreach"
        lines += ["", "[optimizer]", 'name = "AdamW"', f'implementation = "{way}"']
    else:
        said += said_of_optimizer(c.optimizer)
    return Written("\n".join(lines) + "\n", tuple(said))


def _written_precision(c: Configuration, said: list[str]) -> Iterator[str]:
    if c.precision == "float16":
        said.append("torchtitan has no float16; it computes in bfloat16.")
    yield f'mixed_precision_param = "{"float32" if c.precision == "float32" else "bfloat16"}"'
    if c.precision is None:
        said.append("The precision is the model's own; torchtitan's default, bfloat16, is written.")


def _written_ranks(c: Configuration, said: list[str]) -> Iterator[str]:
    """Yield the degrees of parallelism; add to `said` what they cannot express."""
    assert c.dp is not None
    replicas = c.replicas if c.zero else c.dp
    yield f"data_parallel_replicate_degree = {replicas}"
    yield f"data_parallel_shard_degree = {c.dp // replicas}"
    if c.zero and c.dp > replicas:
        yield f'fsdp_reshard_after_forward = "{"always" if c.zero == 3 else "never"}"'
    if c.zero == 1:
        said.append("torchtitan shards gradients with the weights (FSDP), not the optimizer alone.")
    if replicas > 1 and replicas == c.dp and (c.tp > 1 or c.pp > 1):
        said.append("torchtitan's DDP does not run with tensor or pipeline parallelism; FSDP does.")
    yield f"tensor_parallel_degree = {c.tp}"
    if c.tp > 1 and not c.sequence_parallel:
        said.append("torchtitan's tensor parallelism always splits activations along the sequence.")
    yield f"pipeline_parallel_degree = {c.pp}"
    yield f"context_parallel_degree = {c.cp}"
    if c.ep > 1:
        yield f"expert_parallel_degree = {c.ep}"


def _written_stages(c: Configuration, said: list[str]) -> Iterator[str]:
    """Yield schedule and layers; add to `said` what they cannot express."""
    names = {ours: name for name, ours in SCHEDULES.items()}
    usual = "Interleaved1F1B" if (c.virtual or 1) > 1 else "1F1B"
    if c.schedule not in names:
        said.append(f"torchtitan has no schedule {c.schedule}; it runs {usual}.")
    yield f'pipeline_parallel_schedule = "{names.get(c.schedule or "", usual)}"'
    yield f"pipeline_parallel_microbatch_size = {c.microbatch}"
    if not c.layers.stages:
        return
    yield "module_fqns_per_model_part = ["
    first = 0
    for stage, count in enumerate(c.layers.stages):
        names_ = [f"layers.{layer}" for layer in range(first, first + count)]
        before = ["tok_embeddings"] if stage == 0 else []
        after = ["norm", "output"] if stage == len(c.layers.stages) - 1 else []
        yield f"    {json.dumps([*before, *names_, *after])},"
        first += count
    yield "]"
