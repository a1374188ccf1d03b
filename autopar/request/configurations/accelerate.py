"""Reads and writes YAML configurations of accelerate: FSDP, DDP, DeepSpeed and Megatron-LM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from autopar.errors import InputError
from autopar.request.configurations import deepspeed
from autopar.request.configurations.configuration import Configuration
from autopar.request.configurations.exchanged import (
    PRECISIONS,
    Read,
    Written,
    flattened,
    hosts_of,
    left_out,
    said_of_experts,
    whole,
)
from autopar.utils.messages import argument

TYPE, DEVICES, PRECISION = "distributed_type", "num_processes", "mixed_precision"
TYPES = ("FSDP", "MULTI_GPU", "MULTI_CPU", "MULTI_XPU", "NO", "DEEPSPEED", "MEGATRON_LM")
STRATEGIES = {
    "FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3, "HYBRID_SHARD_ZERO2": 2,
}  # fmt: skip
"""ZeRO's stage by FSDP's strategy; FSDP 1 numbers them from one, in this order."""
HYBRID = "HYBRID_"
FSDP = "fsdp_config.fsdp_"
DEGREES = {"tp_size": "tp", "cp_size": "cp"}
PARALLELISM = "parallelism_config."
MEGATRON = "megatron_lm_config.megatron_lm_"
OF_MEGATRON = {"tp_degree": "tp", "pp_degree": "pp", "num_micro_batches": "accumulation"}
KNOWN = frozenset((
    TYPE, DEVICES, PRECISION, "num_machines", "gradient_accumulation_steps",
    *(f"{FSDP}{key}" for key in (
        "sharding_strategy", "reshard_after_forward", "activation_checkpointing", "version",
        "auto_wrap_policy", "backward_prefetch", "backward_prefetch_policy", "forward_prefetch",
        "cpu_ram_efficient_loading", "sync_module_states", "use_orig_params", "state_dict_type",
        "transformer_layer_cls_to_wrap", "min_num_params",
    )),
    *(f"{PARALLELISM}{prefix}{key}" for prefix in ("", "parallelism_config_") for key in (
        *DEGREES, "dp_replicate_size", "dp_shard_size", "cp_comm_strategy",
    )),
    *(f"{MEGATRON}{key}" for key in (
        *OF_MEGATRON, "sequence_parallelism", "recompute_activations", "use_distributed_optimizer",
        "gradient_clipping",
    )),
))  # fmt: skip
"""Keys that are read, or that change nothing here."""
REASONS = {
    f"{FSDP}offload_params": "nothing is kept in the host's memory",
}
IN_DEEPSPEED = {
    "zero_stage": "zero_optimization.stage", "gradient_accumulation_steps": None,
    "offload_optimizer_device": "zero_optimization.offload_optimizer.device",
    "offload_param_device": "zero_optimization.offload_param.device",
}  # fmt: skip
"""Keys of ``deepspeed_config`` by those of DeepSpeed's own file; None: the same."""


def read(text: str, source: str) -> Read:
    """Return the configuration in a YAML file."""
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{source} is not a YAML file: {' '.join(str(error).split())}.") from None
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise InputError(
            f"{source} holds no accelerate configuration: it has to be a table of keys, as "
            "`accelerate config` writes it."
        )
    flat = dict(flattened(content))
    kind = str(flat.get(TYPE, "FSDP" if "fsdp_config" in content else "MULTI_GPU"))
    if kind not in TYPES:
        raise InputError(f"{source}: {TYPE} is {kind!r}; autopar reads {', '.join(TYPES)}.")
    base = Configuration(
        devices=whole(flat[DEVICES], DEVICES, source) if DEVICES in flat else None,
        precision=PRECISIONS.get(_yes_or_no(flat.get(PRECISION, "no"))),
    )
    found, said = _READERS.get(kind, _replicated)(flat, source)
    inert = tuple(table for of, table in TABLES.items() if of != kind or of == "DEEPSPEED")
    others = (pair for pair in flat.items() if not pair[0].startswith(inert))
    return Read(base.stating(**found), (*_fp8(flat), *said, *left_out(others, KNOWN, REASONS)))


Found = tuple[dict[str, Any], tuple[str, ...]]


def _yes_or_no(value: object) -> str:
    """Return a word; YAML reads an unquoted ``no`` as false."""
    return "no" if value is False else str(value).lower()


def _fp8(flat: Mapping[str, Any]) -> Iterator[str]:
    if _yes_or_no(flat.get(PRECISION, "no")) not in PRECISIONS:
        yield f"{PRECISION} = {flat[PRECISION]!r} is left out: the model's own precision is priced."


def _replicated(flat: Mapping[str, Any], source: str) -> Found:
    return _degrees(flat, source), ()


def _degrees(flat: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the degrees in ``parallelism_config``, with or without their prefix."""
    found: dict[str, Any] = {}
    for key, field in {**DEGREES, "dp_replicate_size": "replicas"}.items():
        for place in (f"{PARALLELISM}{key}", f"{PARALLELISM}parallelism_config_{key}"):
            if place in flat:
                found[field] = whole(flat[place], place, source)
    shards = (f"{PARALLELISM}dp_shard_size", f"{PARALLELISM}parallelism_config_dp_shard_size")
    size = next((flat[place] for place in shards if place in flat), None)
    if size is not None and DEVICES not in flat:
        found["dp"] = found.get("replicas", 1) * whole(size, shards[0], source)
    return found


def _fsdp(flat: Mapping[str, Any], source: str) -> Found:
    """Return what FSDP's keys say; FSDP 2 has ``reshard_after_forward`` in place of a strategy."""
    strategy = flat.get(f"{FSDP}sharding_strategy", "FULL_SHARD")
    if str(strategy).isdecimal() and 1 <= int(strategy) <= len(STRATEGIES):
        strategy = list(STRATEGIES)[int(strategy) - 1]
    if strategy not in STRATEGIES:
        raise InputError(
            f"{source}: {FSDP}sharding_strategy is {strategy!r}; autopar reads {', '.join(STRATEGIES)}."
        )
    found, said = {**_degrees(flat, source), "zero": STRATEGIES[strategy]}, []
    kept = flat.get(f"{FSDP}reshard_after_forward")
    if isinstance(kept, str) and kept in STRATEGIES:
        found["zero"] = STRATEGIES[kept]
    elif kept is False:
        found["zero"] = 2
    if str(strategy).startswith(HYBRID):
        found["replicas"] = max(1, int(flat.get("num_machines", 1)))
        said.append(f"{strategy} shards within each of the {found['replicas']} machines.")
    found["recompute"] = "full" if flat.get(f"{FSDP}activation_checkpointing") is True else None
    if "gradient_accumulation_steps" in flat:
        key = "gradient_accumulation_steps"
        found["accumulation"] = whole(flat[key], key, source)
    return found, tuple(said)


def _deepspeed(flat: Mapping[str, Any], source: str) -> Found:
    """Return what an inline DeepSpeed configuration says; raise `InputError` for one in a file."""
    elsewhere = flat.get("deepspeed_config.deepspeed_config_file")
    if elsewhere is not None:
        raise InputError(
            f"{source} has its DeepSpeed configuration in {elsewhere}: pass that file, and the number "
            f"of devices as {argument('devices')}."
        )
    inside = {
        key.removeprefix("deepspeed_config."): value
        for key, value in flat.items()
        if key.startswith("deepspeed_config.")
    }
    known = {IN_DEEPSPEED.get(key) or key: value for key, value in inside.items()}
    found = deepspeed.of_content(known, source)
    c = found.configuration
    values = {"zero": c.zero, "accumulation": c.accumulation, "precision": c.precision}
    return values, found.said


def _megatron(flat: Mapping[str, Any], source: str) -> Found:
    found: dict[str, Any] = {
        field: whole(flat[f"{MEGATRON}{key}"], f"{MEGATRON}{key}", source)
        for key, field in OF_MEGATRON.items()
        if f"{MEGATRON}{key}" in flat
    }
    found["sequence_parallel"] = flat.get(f"{MEGATRON}sequence_parallelism") is True or None
    found["zero"] = int(flat.get(f"{MEGATRON}use_distributed_optimizer") is True)
    again = flat.get(f"{MEGATRON}recompute_activations") is True
    return found | {"recompute": "attention" if again else None}, ()


_READERS = {"FSDP": _fsdp, "DEEPSPEED": _deepspeed, "MEGATRON_LM": _megatron}
TABLES = {
    "FSDP": "fsdp_config.", "DEEPSPEED": "deepspeed_config.", "MEGATRON_LM": "megatron_lm_config.",
}  # fmt: skip
"""The tables of one type, which says nothing under another; DeepSpeed's own reader reads its table."""


def write(configuration: Configuration, host: int) -> Written:
    """Return a YAML file of the nearest configuration, on hosts of up to `host` devices."""
    c, said = configuration, list[str]()
    assert c.devices is not None and c.dp is not None
    short = {name: key for key, name in PRECISIONS.items() if name}
    content: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        TYPE: "FSDP",
        "num_machines": hosts_of(c.devices, host),
        DEVICES: c.devices,
        PRECISION: short.get(c.precision or "", "no").replace("fp32", "no"),
    }
    said.append(
        f"The program says the batch: {c.microbatch} samples on each rank in a microbatch, and "
        f"Accelerator(gradient_accumulation_steps={c.accumulation})."
    )
    said += said_of_experts(c, "Accelerate")
    if c.pp > 1 or (c.tp > 1 and c.zero < 3):
        content |= _written_megatron(c, said)
    elif c.zero == 0 and c.tp == 1:
        content[TYPE] = "MULTI_GPU"
        if c.recompute != "none":
            said.append(f"The model's code says what is recomputed; here it is {c.recompute}.")
    else:
        content |= _written_fsdp(c, said)
    if c.cp > 1 and content[TYPE] != "FSDP":
        said.append(f"accelerate splits the sequence with FSDP only; {c.cp} ranks are left out.")
    return Written(yaml.safe_dump(content, sort_keys=False), tuple(said))


def _written_fsdp(c: Configuration, said: list[str]) -> dict[str, Any]:
    """Return the keys of FSDP 2; add to `said` what they cannot express."""
    assert c.dp is not None
    if c.zero == 1:
        said.append("FSDP shards gradients with the weights, not the optimizer alone.")
    if c.recompute in ("selective", "attention"):
        said.append(f"FSDP recomputes all of a layer or nothing, not {c.recompute}.")
    if c.tp > 1 and c.sequence_parallel:
        said.append("The model's own plan says whether activations are split along the sequence.")
    return {
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": c.zero == 3,
            "fsdp_activation_checkpointing": c.recompute == "full",
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        },
        "parallelism_config": {
            "parallelism_config_dp_replicate_size": c.replicas,
            "parallelism_config_dp_shard_size": c.dp // c.replicas,
            "parallelism_config_tp_size": c.tp,
            "parallelism_config_cp_size": c.cp,
        },
    }


def _written_megatron(c: Configuration, said: list[str]) -> dict[str, Any]:
    """Return the keys of Megatron-LM; add to `said` what they cannot express."""
    if c.zero == 3:
        said.append("Megatron-LM's distributed optimizer (ZeRO-1) is written for ZeRO-3.")
    if c.schedule != "1f1b" or (c.virtual or 1) > 1:
        said.append(
            f"accelerate's Megatron-LM runs 1F1B with one stage on each rank, not {c.schedule}."
        )
    if c.recompute in ("selective", "full"):
        said.append(f"accelerate's Megatron-LM recomputes attention alone, not {c.recompute}.")
    if c.replicas > 1:
        said.append(f"Hybrid sharding in {c.replicas} groups is left out.")
    return {
        TYPE: "MEGATRON_LM",
        "megatron_lm_config": {
            "megatron_lm_tp_degree": c.tp,
            "megatron_lm_pp_degree": c.pp,
            "megatron_lm_num_micro_batches": c.accumulation,
            "megatron_lm_sequence_parallelism": c.sequence_parallel,
            "megatron_lm_recompute_activations": c.recompute != "none",
            "megatron_lm_use_distributed_optimizer": c.zero > 0,
        },
    }
