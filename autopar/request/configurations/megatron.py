"""Reads and writes arguments of Megatron-LM, as a shell script or a list.

The arguments are those of Megatron-LM's ``megatron/training/arguments.py``; some of Megatron-DeepSpeed's
and of older versions are read as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from autopar.errors import InputError
from autopar.request.configurations import megatron_layout
from autopar.request.configurations.configuration import (
    INTERLEAVED,
    PLAIN,
    Configuration,
    Recomputation,
)
from autopar.request.configurations.exchanged import (
    Read,
    Written,
    hosts_of,
    left_out,
    optimizer_of,
    said_of_optimizer,
    whole,
)
from autopar.request.configurations.shell import Argument, arguments
from autopar.request.layers import Layers

NUMBERS = {
    "tensor-model-parallel-size": "tp", "model-parallel-size": "tp",
    "pipeline-model-parallel-size": "pp", "context-parallel-size": "cp",
    "expert-model-parallel-size": "ep", "micro-batch-size": "microbatch",
    "global-batch-size": "batch", "seq-length": "sequence",
    "num-virtual-stages-per-pipeline-rank": "virtual",
}  # fmt: skip
"""Fields of a configuration by argument."""
SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""ZeRO's stage by ``--data-parallel-sharding-strategy``."""
FSDP = ("use-megatron-fsdp", "use-custom-fsdp")
ALL_AGAIN = (
    "checkpoint-activations", "activations-checkpoint-method", "deepspeed-activation-checkpointing",
)  # fmt: skip
"""Arguments of older versions that recompute every layer."""
OTHERS = frozenset([
    "nproc-per-node", "nnodes", "num-gpus", "num-nodes", "sequence-parallel", "bf16", "fp16",
    "optimizer", "zero-stage", "use-distributed-optimizer", "use-torch-fsdp2",
    "data-parallel-sharding-strategy", "recompute-activations", "recompute-granularity",
    "recompute-method", "recompute-num-layers", "recompute-modules", "num-layers",
    "num-layers-per-virtual-pipeline-stage", "decoder-first-pipeline-num-layers",
    "decoder-last-pipeline-num-layers", "account-for-embedding-in-pipeline-split",
    "account-for-loss-in-pipeline-split", "pipeline-model-parallel-layout",
    "no-pipeline-parallel", "num-distributed-optimizer-instances", "overlap-grad-reduce",
    "overlap-param-gather", "overlap-p2p-communication", "ddp-bucket-size", "batch-size",
    "encoder-seq-length", "decoder-seq-length", "accumulate-allreduce-grads-in-fp32", "ddp-impl",
    "num-experts", "data-parallel-random-init",
])  # fmt: skip
"""Arguments that are read besides `NUMBERS`, or that change nothing: reductions overlap anyhow."""
OF_EXPERTS, OF_FP8 = "moe-", "fp8-"
"""Beginnings of arguments of experts, which belong to the model, and of those that refine FP8."""
KNOWN = frozenset((*NUMBERS, *OTHERS, *FSDP, *ALL_AGAIN))
REASONS = {
    "tp-comm-overlap": "communication of tensor parallelism is not overlapped with products",
    "rampup-batch-size": "the step is priced at the final batch",
    "grad-reduce-in-bf16": "gradients are reduced in float32",
    "fp8-format": "products and gathers are priced in the precision of the other operators",
    "expert-tensor-parallel-size": "experts are divided like other weights",
    "cpu-offloading": "nothing is kept in the host's memory",
    "optimizer-cpu-offload": "nothing is kept in the host's memory",
    "cpu-optimizer": "nothing is kept in the host's memory",
}  # fmt: skip
"""Why autopar leaves an argument out."""


@dataclass(frozen=True)
class _Given:
    """The arguments by name; of several of one name the last counts."""

    known: Mapping[str, Argument]
    source: str

    def __contains__(self, name: str) -> bool:
        return name in self.known

    def word(self, name: str) -> str | None:
        """Return the value of an argument; None without it."""
        found = self.known.get(name)
        if found is None:
            return None
        if found.several or not found.values or "$" in found.values[0]:
            how = (
                f"{' or '.join(found.several)}, by a branch of the script"
                if found.several
                else f"{found.values[0]}, which the file does not set"
                if found.values
                else "without a value"
            )
            raise InputError(
                f"{self.source}: --{name} is {how}. Write the value into the file, as in --{name} 8."
            )
        return found.values[0]

    def number(self, name: str, least: int = 1) -> int | None:
        """Return the value of an argument as a whole number; None without it."""
        value = self.word(name)
        return None if value is None else whole(value, f"--{name}", self.source, least)


def read(text: str, source: str) -> Read:
    """Return the configuration in a script or a list of arguments."""
    found = arguments(text, source)
    given = _Given({each.name: each for each in found}, source)
    values: dict[str, Any] = {}
    for name, field in NUMBERS.items():
        if name in given:
            values[field] = given.number(name)
    virtual = given.number("num-layers-per-virtual-pipeline-stage")
    if virtual is not None:
        values["virtual"] = _virtual(given, virtual, values.get("pp", 1))
    layers, said_of_layers = _layers(given, values.get("pp", 1), values.get("virtual") or 1)
    recompute, said_of_recompute = _recompute(given)
    optimizer, of_optimizer = optimizer_of(given.word("optimizer") or "adam")
    configuration = Configuration(
        **values,
        layers=layers,
        recompute=recompute,
        optimizer=optimizer,
        zero=_zero(given),
        sequence_parallel="sequence-parallel" in given,
        precision="bfloat16" if "bf16" in given else "float16" if "fp16" in given else None,
        replicas=given.number("num-distributed-optimizer-instances") or 1,
        devices=_devices(given),
    )
    said = (
        *said_of_layers, *said_of_recompute, *of_optimizer, *_branches(found),
        *(f"--{line}" for line in left_out(_rest(found).items(), KNOWN, REASONS)),
    )  # fmt: skip
    return Read(configuration, said)


def _rest(found: Iterable[Argument]) -> dict[str, str]:
    """Return the arguments that may have to be named, with their values."""
    return {
        each.name: each.values[0] if each.values else "yes"
        for each in found
        if not each.name.startswith(OF_EXPERTS)
        and (each.name in REASONS or not each.name.startswith(OF_FP8))
    }


def _devices(given: _Given) -> int | None:
    """Return the number of processes that the launcher starts, if the file says it."""
    for each, hosts in (("nproc-per-node", "nnodes"), ("num-gpus", "num-nodes")):
        with suppress(InputError):
            count = given.number(each)
            if count is not None:
                return count * (given.number(hosts) or 1)
    return None


def _virtual(given: _Given, each: int, stages: int) -> int:
    """Return the stages of a rank, for layers of a stage."""
    layers = given.number("num-layers")
    if layers is None or layers % (stages * each):
        raise InputError(
            f"{given.source}: --num-layers-per-virtual-pipeline-stage {each} needs --num-layers that "
            f"{stages} stages of so many divide; it is {layers}. Write it, or "
            "--num-virtual-stages-per-pipeline-rank."
        )
    return layers // (stages * each)


def _zero(given: _Given) -> int:
    """Return the stage of ZeRO."""
    if "use-torch-fsdp2" in given:
        return 3
    if any(name in given for name in FSDP):
        strategy = given.word("data-parallel-sharding-strategy") or "no_shard"
        if strategy not in SHARDING:
            raise InputError(
                f"{given.source}: --data-parallel-sharding-strategy {strategy} is unknown; Megatron-LM "
                f"has {', '.join(SHARDING)}."
            )
        return SHARDING[strategy]
    stage = given.number("zero-stage", least=0)
    return stage or int("use-distributed-optimizer" in given)


def _recompute(given: _Given) -> tuple[Recomputation, tuple[str, ...]]:
    """Return what is recomputed, and what there is to say."""
    granularity = given.word("recompute-granularity")
    if any(name in given for name in ALL_AGAIN) or granularity == "full":
        return "full", tuple(_partly(given))
    if granularity is None and "recompute-activations" not in given:
        return "none", ()
    modules = given.known["recompute-modules"].values if "recompute-modules" in given else ()
    if set(modules) <= {"core_attn"}:
        return "attention", ()
    return "selective", (
        f"--recompute-modules {' '.join(modules)}: the closest here is to recompute all but matrix "
        "products and attention.",
    )


def _partly(given: _Given) -> Iterator[str]:
    layers = given.number("recompute-num-layers") or 1
    if given.word("recompute-method") == "block":
        yield (
            f"--recompute-method block recomputes {layers} layers of each stage; here all are "
            "recomputed."
        )
    elif layers > 1:
        yield f"--recompute-num-layers {layers}: layers are recomputed one by one here."


def _layers(given: _Given, pp: int, virtual: int) -> tuple[Layers, tuple[str, ...]]:
    """Return the layers of the stages, and what there is to say."""
    layout = given.word("pipeline-model-parallel-layout")
    if layout is not None:
        return Layers(megatron_layout.counts(layout, given.source)), ()
    fewer = tuple(
        int(f"account-for-{what}-in-pipeline-split" in given) for what in ("embedding", "loss")
    )
    ends = [given.number(f"decoder-{end}-pipeline-num-layers") for end in ("first", "last")]
    if ends == [None, None]:
        return Layers(fewer=(fewer[0], fewer[1])), ()
    layers = given.number("num-layers")
    middle = pp - sum(end is not None for end in ends)
    rest = (layers or 0) - sum(end or 0 for end in ends)
    if layers is None or virtual > 1 or middle < 1 or rest % middle or rest < middle:
        return Layers(), (
            "--decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers are left out: "
            "they need --num-layers that the other stages divide, and one stage on each rank.",
        )
    first, last = ([] if end is None else [end] for end in ends)
    return Layers((*first, *[rest // middle] * middle, *last)), ()


def _branches(found: tuple[Argument, ...]) -> Iterator[str]:
    """Yield what is said of arguments that a branch of the script may leave out."""
    known = KNOWN | REASONS.keys()
    names = dict.fromkeys(f"--{a.name}" for a in found if a.in_branch and a.name in known)
    if names:
        yield f"Branches of the script have {', '.join(names)}; they are read as if they were taken."


def write(configuration: Configuration, host: int) -> Written:
    """Return a script with the arguments of the nearest configuration.

    Hosts have up to `host` devices, all equally many.
    """
    c = configuration
    assert c.devices is not None and c.dp is not None
    hosts = hosts_of(c.devices, host)
    said = list(said_of_optimizer(c.optimizer))
    launch = [f"--nnodes {hosts}", f"--nproc_per_node {c.devices // hosts}"]
    lines = [
        f"--{name} {getattr(c, field)}" for field, name in _WRITTEN.items() if getattr(c, field)
    ]
    lines += [f"--context-parallel-size {c.cp}"] if c.cp > 1 else []
    lines += _written_stages(c, said)
    lines += [f"--expert-model-parallel-size {c.ep}"] if c.ep > 1 else []
    lines += ["--sequence-parallel"] if c.sequence_parallel else []
    lines += _written_zero(c, said)
    lines += _written_recompute(c, said)
    lines += ["--optimizer sgd"] if (c.optimizer or "").startswith("SGD") else []
    lines += {"bfloat16": ["--bf16"], "float16": ["--fp16"]}.get(c.precision or "", [])
    text = "\n".join([
        "#!/bin/bash", "# The model's own arguments, its data and its learning rate follow as \"$@\".",
        *_array("DISTRIBUTED_ARGS", launch), *_array("PARALLEL_ARGS", lines),
        'torchrun "${DISTRIBUTED_ARGS[@]}" pretrain_gpt.py "${PARALLEL_ARGS[@]}" "$@"', "",
    ])  # fmt: skip
    return Written(text, tuple(said))


_WRITTEN = {
    "tp": "tensor-model-parallel-size", "pp": "pipeline-model-parallel-size",
    "microbatch": "micro-batch-size", "batch": "global-batch-size", "sequence": "seq-length",
}  # fmt: skip


def _array(name: str, lines: list[str]) -> Iterator[str]:
    yield f"{name}=("
    yield from (f"    {line}" for line in lines)
    yield ")"


def _written_stages(c: Configuration, said: list[str]) -> Iterator[str]:
    """Yield the arguments of a pipeline; add to `said` what they cannot express."""
    if c.pp == 1:
        return
    several = (c.virtual or 1) > 1
    if c.schedule not in (PLAIN, INTERLEAVED):
        nearest = "interleaved 1F1B" if several else "1F1B"
        said.append(f"Megatron-LM has no schedule {c.schedule}; it runs {nearest}.")
    if c.layers.stages and len(set(c.layers.stages)) > 1:
        yield f'--pipeline-model-parallel-layout "{megatron_layout.text(c.layers.stages)}"'
    elif several:
        yield f"--num-virtual-stages-per-pipeline-rank {c.virtual}"
    for what, fewer in zip(("embedding", "loss"), c.layers.fewer, strict=True):
        if fewer == 1:
            yield f"--account-for-{what}-in-pipeline-split"


def _written_zero(c: Configuration, said: list[str]) -> Iterator[str]:
    """Yield the arguments of ZeRO; add to `said` what they cannot express."""
    assert c.dp is not None
    if not c.zero or c.dp == 1:
        return
    yield "--use-distributed-optimizer"
    if c.zero == 3 and c.pp == 1:
        yield from ("--use-megatron-fsdp", "--data-parallel-sharding-strategy optim_grads_params")
    elif c.zero == 3:
        said.append(
            "Megatron-LM's FSDP has no stages; its distributed optimizer (ZeRO-1) is written."
        )
    if c.replicas > 1:
        yield f"--num-distributed-optimizer-instances {c.replicas}"


def _written_recompute(c: Configuration, said: list[str]) -> Iterator[str]:
    """Yield the arguments of recomputation; add to `said` what they cannot express."""
    if c.recompute == "full":
        yield from (
            "--recompute-granularity full", "--recompute-method uniform", "--recompute-num-layers 1",
        )  # fmt: skip
    elif c.recompute == "attention":
        yield "--recompute-granularity selective"
    elif c.recompute == "selective":
        yield from ("--recompute-granularity selective", "--recompute-modules core_attn layernorm")
        said.append(
            "Megatron-LM recomputes chosen modules, here attention and norms, and keeps what other "
            "elementwise operators need."
        )
