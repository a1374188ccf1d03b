"""Reads and writes JSON configurations of DeepSpeed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from autopar.errors import InputError
from autopar.request.configurations.configuration import Configuration
from autopar.request.configurations.exchanged import (
    Read,
    Written,
    flattened,
    left_out,
    optimizer_of,
    said_of_experts,
    said_of_optimizer,
    whole,
)

AUTO = "auto"
"""The value of keys that the Trainer of transformers fills in."""
NUMBERS = {
    "train_batch_size": "batch", "train_micro_batch_size_per_gpu": "microbatch",
    "gradient_accumulation_steps": "accumulation", "tensor_parallel.autotp_size": "tp",
    "pipeline.stages": "pp", "sequence_parallel_size": "cp",
}  # fmt: skip
"""Fields of a configuration by key.  DeepSpeed's sequence parallelism divides attention by heads."""
STAGE = "zero_optimization.stage"
OVERLAPPED = (
    "contiguous_gradients", "overlap_comm", "reduce_scatter", "reduce_bucket_size",
    "allgather_partitions", "allgather_bucket_size", "sub_group_size", "round_robin_gradients",
    "ignore_unused_parameters", "stage3_prefetch_bucket_size", "stage3_max_live_parameters",
    "stage3_max_reuse_distance", "stage3_param_persistence_threshold",
    "stage3_gather_16bit_weights_on_model_save", "elastic_checkpoint", "load_from_fp32_weights",
    "stage3_gather_fp16_weights_on_model_save", "stage3_param_persistance_threshold",
    "stage3_param_persitance_threshold", "stage3_param_persitence_threshold",
)  # fmt: skip
"""Keys of ZeRO that set buckets and overlap, which autopar decides for itself."""
KNOWN = frozenset((
    *NUMBERS, STAGE, "zero_allow_untested_optimizer", "pipeline.seed_layers",
    *(f"zero_optimization.{key}" for key in OVERLAPPED),
))  # fmt: skip
IN_HOST = "nothing is kept in the host's memory or on disks"
CHECKPOINTS = (
    "the model's code says what is recomputed; pass --recompute full if it recomputes every layer"
)
REASONS = {
    "pipeline.partition": "stages get equal numbers of layers",
    "pipeline.activation_checkpoint_interval": CHECKPOINTS,
    "zero_optimization.offload_optimizer.device": IN_HOST,
    "zero_optimization.offload_param.device": IN_HOST,
    "zero_optimization.cpu_offload": IN_HOST,
    "zero_optimization.zero_hpz_partition_size": "weights have one gathering axis",
    "zero_optimization.mics_shard_size": "pass --replicas, the groups that shard for themselves",
    "zero_optimization.zero_quantized_weights": "weights are gathered in their own precision",
    "zero_optimization.zero_quantized_gradients": "gradients are reduced in float32",
    "activation_checkpointing.partition_activations": CHECKPOINTS,
    "activation_checkpointing.number_checkpoints": CHECKPOINTS,
    "activation_checkpointing.cpu_checkpointing": IN_HOST,
}  # fmt: skip
"""Why autopar leaves a key out."""
REFINED = ("zero_optimization.offload_optimizer.", "zero_optimization.offload_param.")
"""Tables of which one key is named."""


def read(text: str, source: str) -> Read:
    """Return the configuration in a JSON file."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source} is not a JSON file: {error}.") from None
    if not isinstance(content, dict):
        raise InputError(
            f"{source} holds a {type(content).__name__}, not a DeepSpeed configuration."
        )
    return of_content(content, source)


def of_content(content: Mapping[str, Any], source: str) -> Read:
    """Return the configuration that parsed content states."""
    flat = {**dict(flattened(content)), **_short(content)}
    values: dict[str, Any] = {
        field: whole(flat[key], key, source)
        for key, field in NUMBERS.items()
        if flat.get(key, AUTO) != AUTO
    }
    name = flat.get("optimizer.type")
    optimizer, of_optimizer = optimizer_of(None if name == AUTO else name)
    stage = flat.get(STAGE, 0)
    precisions = {"bf16": "bfloat16", "bfloat16": "bfloat16", "fp16": "float16"}
    configuration = Configuration(
        **values,
        zero=0 if stage == AUTO else whole(stage, STAGE, source, least=0),
        precision=next(
            (name for key, name in precisions.items() if flat.get(f"{key}.enabled") is True), None
        ),
        optimizer=optimizer,
    )
    others = [
        (key, value) for key, value in flat.items() if key in REASONS or not key.startswith(REFINED)
    ]
    return Read(configuration, (*of_optimizer, *left_out(others, KNOWN, REASONS)))


def _short(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of an old spelling: ``"zero_optimization": true`` is stage 1."""
    given = content.get("zero_optimization")
    return {STAGE: int(given)} if isinstance(given, bool) else {}


def write(configuration: Configuration, host: int) -> Written:
    """Return a JSON file of the nearest configuration.  It does not say on how many devices it runs."""
    c, said = configuration, list[str]()
    said.append(f"DeepSpeed's launcher is told the number of devices: --num_gpus, for {c.devices}.")
    zero = c.zero
    if c.pp > 1:
        zero = min(zero, 1)
        said.append(
            f"The model's code divides it into {c.pp} stages (deepspeed.pipe.PipelineModule); the file "
            "only repeats their number."
        )
    if zero < c.zero:
        said.append(f"DeepSpeed's pipeline runs with ZeRO-1 at most, not with ZeRO-{c.zero}.")
    if c.pp > 1 and (c.schedule != "1f1b" or (c.virtual or 1) > 1):
        said.append(
            f"DeepSpeed's pipeline runs 1F1B with one stage on each rank, not {c.schedule}."
        )
    if c.tp > 1 and zero == 3:
        zero = 2
        said.append("DeepSpeed's tensor parallelism runs with ZeRO-2 at most.")
    said += said_of_experts(c, "DeepSpeed")
    if c.sequence_parallel:
        said.append("DeepSpeed's tensor parallelism does not split activations along the sequence.")
    if c.recompute != "none":
        said.append(f"The model's code says what is recomputed; here it is {c.recompute}.")
    content: dict[str, Any] = {
        "train_batch_size": c.batch,
        "train_micro_batch_size_per_gpu": c.microbatch,
        "gradient_accumulation_steps": c.accumulation,
        "zero_optimization": {"stage": zero},
    }
    if c.replicas > 1:
        said.append(
            f"Hybrid sharding in {c.replicas} groups is left out; ZeRO shards among all ranks."
        )
    if c.precision in ("bfloat16", "float16"):
        content["bf16" if c.precision == "bfloat16" else "fp16"] = {"enabled": True}
    said += said_of_optimizer(c.optimizer)
    if c.optimizer and c.optimizer.startswith(("AdamW", "SGD")):
        content["optimizer"] = {"type": c.optimizer.partition("(")[0]}
    if c.tp > 1:
        content["tensor_parallel"] = {"autotp_size": c.tp}
    if c.cp > 1:
        content["sequence_parallel_size"] = c.cp
        said.append("DeepSpeed exchanges positions for heads in attention; the plan gathers keys.")
    if c.pp > 1:
        content["pipeline"] = {"stages": c.pp}
    return Written(json.dumps(content, indent=2) + "\n", tuple(said))
