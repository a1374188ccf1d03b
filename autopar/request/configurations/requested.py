"""Turns a configuration into a request: mesh, preset, pipeline and recomputation.

Tensor-parallel ranks are neighbours, context-parallel and then data-parallel ranks are further apart,
those among which experts are divided nearer than the others, and stages are furthest, as in Megatron-LM
(Narayanan et al. 2021, section 3.2).  Each mesh axis has the preset of its parallelism.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autopar.errors import InputError
from autopar.ir.mesh import Mesh
from autopar.request.configurations.configuration import Configuration
from autopar.request.options import GATHERS
from autopar.request.pipeline import Pipeline
from autopar.request.presets import BESIDE
from autopar.utils.messages import argument

STAGE, REPLICA, DATA, EXPERT = "stage", "replica", "data", "expert"
CONTEXT, TENSOR = "context", "tensor"
BY_ZERO = ("ddp", "zero2", "zero2", "fsdp")
"""The preset of a data axis, by the stage of ZeRO.  ZeRO-1 and ZeRO-2 differ in when gradients are
reduced, which is once a step here."""
ALONG = ("ddp_context_parallel", *2 * ("zero2_context_parallel",), "context_parallel")
"""The same for a context axis, whose ranks share weights like those of a data axis."""
NAMED: dict[tuple[str, ...], str] = {
    ("ddp", "megatron"): "megatron", ("ddp", "megatron_sp"): "megatron_sp",
    ("zero2", "megatron"): "zero2_megatron", ("zero2", "megatron_sp"): "zero2_megatron_sp",
    ("fsdp", "megatron"): "fsdp_megatron", ("ddp", "fsdp"): "hsdp",
    **{pair: pair[1] for pair in zip(BY_ZERO, ALONG, strict=True)},
    ("ddp", "experts"): "experts", ("zero2", "zero2_experts"): "zero2_experts",
    ("fsdp", "fsdp_experts"): "fsdp_experts",
}  # fmt: skip
"""Presets that are one for each of two axes."""


@dataclass(frozen=True)
class Requested:
    """The request that a configuration amounts to; `said` is what differs from it, in sentences."""

    mesh: Mesh
    preset: str | None
    pipeline: Pipeline
    recompute: str
    said: tuple[str, ...]


def requested(configuration: Configuration) -> Requested:
    """Return the request of a settled configuration.

    Raise `InputError` for parallelisms that autopar does not run; the message names the closest that it
    runs.
    """
    c = configuration
    _refuse_replicas_of_experts(c)
    axes = tuple(axis for axis in _axes(c) if axis[1] > 1) or ((DATA, 1, ""),)
    of_stage = Mesh.of(*(size for _, size, _ in axes), names=tuple(name for name, _, _ in axes))
    presets = tuple(preset for _, _, preset in axes)
    mesh = of_stage
    if c.pp > 1:
        mesh = Mesh.of(c.pp, *of_stage.sizes, names=(STAGE, *of_stage.names))
    return Requested(
        mesh,
        NAMED.get(presets, BESIDE.join(presets)) or None,
        _pipeline(c, of_stage),
        _recompute(c),
        tuple(_said(c)),
    )


def _axes(c: Configuration) -> Iterator[tuple[str, int, str]]:
    """Yield the name, size and preset of each mesh axis of a stage."""
    assert c.dp is not None
    yield REPLICA, c.replicas, "ddp"
    yield DATA, c.dp // (c.replicas * c.ep), BY_ZERO[c.zero]
    yield EXPERT, c.ep, f"{BY_ZERO[c.zero]}_experts".removeprefix("ddp_")
    yield CONTEXT, c.cp, ALONG[c.zero]
    yield TENSOR, c.tp, "megatron_sp" if c.sequence_parallel else "megatron"


def _recompute(c: Configuration) -> str:
    """Return what is recomputed; along a sequence, gathers of activations are repeated at least.

    So does Megatron-LM (Korthikanti et al. 2022, section 4.2.2).
    """
    if c.recompute in ("none", "attention"):
        return GATHERS if c.sequence_parallel or c.cp > 1 else "none"
    return c.recompute


def _pipeline(c: Configuration, of_stage: Mesh) -> Pipeline:
    """Return the stages; one stage that accumulates gradients if there are only microbatches."""
    if c.pp == 1 and c.microbatches == 1:
        return Pipeline(1)
    return Pipeline(
        [of_stage.sizes] * c.pp,
        c.schedule,
        c.microbatches,
        layers=c.layers,
        virtual=c.virtual,
    )


def _refuse_replicas_of_experts(c: Configuration) -> None:
    assert c.dp is not None
    if c.dp % (c.replicas * c.ep):
        raise InputError(
            f"{argument('replicas', c.replicas)} and {argument('ep', c.ep)}: each replica has "
            f"{c.dp // c.replicas} data-parallel ranks, which {argument('ep', c.ep)} does not divide."
        )


def _said(c: Configuration) -> Iterator[str]:
    """Yield how the request differs from the configuration."""
    if c.cp > 1:
        yield (
            "Context-parallel ranks gather keys and values here, as Llama 3 does. Megatron-LM and "
            "torchtitan may pass them in a ring, and DeepSpeed exchanges positions for heads."
        )
    if c.zero == 2 and c.microbatches > 1:
        yield (
            "ZeRO-2 reduces gradients in every microbatch; here they are reduced once a step, and until "
            "then each rank holds all gradients of its weights, as with ZeRO-1."
        )
