"""GPT-like stage tables from formulas, under a plain alpha-beta model: no graph, no measurement.

With b samples a microbatch on t tensor- and d data-parallel devices, per layer and microbatch:

    forward        24 b s h^2 + 4 b s^2 h FLOP      (Narayanan et al. 2021, appendix)
    input grad.    24 b s h^2 + 8 b s^2 h           weight gradient  24 b s h^2
    all / (t d) at `flops_per_s`; the last layer also has logits: 2 b s h V forward, as much for
    each gradient
    all-reduces    2 forward, 2 backward of 2 b s h / d bytes over t; all-reduce of N bytes over n
                   devices: 2 (n - 1) (alpha + N / (n beta)), the slowest link that it crosses
    memory         12 h^2 / t parameters of 4 bytes (weight, gradient) + 12 bytes (Adam), the latter
                   over d where sharded (ZeRO-1); the first layer also V h; kept for the backward
                   s b h / d (10 + 24 / t + 5 a s / (h t)) bytes (Korthikanti et al. 2022, eq. 2);
                   recomputing a layer keeps 2 s b h / d, needs one layer's kept bytes while it
                   works, and runs forward and its all-reduces again
    once a step    all-reduce of 2-byte gradients over d (hideable), update at `memory_bytes_per_s`
    borders        2 b s h bytes between stages, over as many links between nodes as the smaller one
                   has nodes
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from autopar.pipeline.planner.families import Family
from autopar.pipeline.planner.table import Array, StageOption, StageProblem, StageTable


@dataclass(frozen=True)
class Gpt:
    """A decoder: layers, hidden size, heads, sequence, vocabulary, batch of samples."""

    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    batch: int


@dataclass(frozen=True)
class Machine:
    """Nodes of equal devices; links inside and between, each (alpha seconds, beta bytes per second)."""

    nodes: int
    devices: int
    flops_per_s: float
    memory_nbytes: float
    memory_bytes_per_s: float
    inside: tuple[float, float]
    between: tuple[float, float]


GPT_39B = Gpt(48, 8192, 64, 1024, 51200, 1024)
"""Zheng et al. 2022 (Alpa), table 4."""
V100_16 = Machine(8, 8, 0.5 * 125e12, 16e9, 900e9, (5e-6, 130e9), (30e-6, 3.125e9))
"""p3.16xlarge: 125 TFLOP/s at half efficiency, NVLink, 25 Gbit/s between nodes."""
LLAMA_405B = Gpt(126, 16384, 128, 8192, 128256, 2048)
H100_80 = Machine(2048, 8, 0.5 * 989e12, 80e9, 3350e9, (5e-6, 400e9), (20e-6, 50e9))


def shapes_of(machine: Machine, least: int = 1) -> list[tuple[int, int]]:
    """Powers of two within a node, then whole nodes."""
    inside = [(1, 2**k) for k in range(machine.devices.bit_length()) if 2**k <= machine.devices]
    across = [(2**k, machine.devices) for k in range(1, machine.nodes.bit_length())]
    return [(n, g) for n, g in inside + across if n * g >= least and n <= machine.nodes]


def gpt_problem(
    gpt: Gpt,
    machine: Machine,
    microbatches: list[int],
    families: tuple[Family, ...],
    shapes: list[tuple[int, int]] | None = None,
    most_stages: int | None = None,
) -> StageProblem:
    """A table for each number of microbatches."""
    chosen = shapes or shapes_of(machine)
    tables = tuple(gpt_table(gpt, machine, many, chosen) for many in microbatches)
    return StageProblem(
        gpt.layers + 1, machine.nodes * machine.devices, machine.memory_nbytes, tables, families,
        most_stages,
    ).check()  # fmt: skip


def gpt_table(
    gpt: Gpt, machine: Machine, microbatches: int, shapes: list[tuple[int, int]]
) -> StageTable:
    """Every shape, view, recompute and sharding of the optimizer."""
    samples = gpt.batch // microbatches
    widths = sorted({nodes for nodes, _ in shapes})
    ways = tuple(
        _way(gpt, machine, samples, shape, tensor, recompute, sharded, widths.index(shape[0]))
        for shape in shapes
        for tensor, data in _views(shape)
        if samples % data == 0
        for recompute in (False, True)
        for sharded in ((False, True) if data > 1 else (False,))
    )
    alpha, beta = machine.between
    links = np.minimum.outer(widths, widths)
    seconds = 2.0 * samples * gpt.sequence * gpt.hidden / beta / links
    cuts = np.broadcast_to(seconds, (gpt.layers + 1, *links.shape))
    return StageTable(microbatches, ways, cuts, cuts, alpha)


def _views(shape: tuple[int, int]) -> Iterator[tuple[int, int]]:
    nodes, devices = shape
    tensor = 1
    while tensor <= devices:
        yield tensor, nodes * devices // tensor
        tensor *= 2


def all_reduce(nbytes: Array | float, members: int, link: tuple[float, float]) -> Array | float:
    """A ring: 2 (n - 1) messages of N / n bytes."""
    alpha, beta = link
    return 2 * (members - 1) * (alpha + nbytes / members / beta)


def _way(
    gpt: Gpt,
    machine: Machine,
    samples: int,
    shape: tuple[int, int],
    tensor: int,
    recompute: bool,
    sharded: bool,
    border: int,
) -> StageOption:
    nodes, devices = shape
    data = nodes * devices // tensor
    b, s, h = samples / data, gpt.sequence, gpt.hidden
    speed = machine.flops_per_s * tensor
    matmul, attention = 24 * b * s * h**2 / speed, 4 * b * s**2 * h / speed
    logits = np.zeros(gpt.layers)
    logits[-1] = 2 * b * s * h * gpt.vocabulary / speed
    together = 2 * all_reduce(2 * b * s * h, tensor, machine.inside) if tensor > 1 else 0.0
    forward = matmul + attention + together + logits
    again = forward if recompute else 0.0 * forward
    parameters = np.full(gpt.layers, 12.0 * h**2)
    parameters[0] += gpt.vocabulary * h
    parameters /= tensor
    kept = s * b * h * (10 + 24 / tensor + 5 * gpt.heads * s / (h * tensor))
    link = machine.inside if nodes == 1 else machine.between
    # Data-parallel neighbours of a node share its link to other nodes.
    sharing = tensor if nodes > 1 else 1
    words = f"dp{data} tp{tensor}{' recompute' * recompute}{' zero1' * sharded}"
    total = _ranges(np.stack([parameters]))[0]
    reduced = all_reduce(2.0 * sharing * total, data, link) if data > 1 else 0.0 * total
    offered = total > 0
    return StageOption(
        words, nodes, devices,
        *(np.where(offered, seconds, np.inf) for seconds in _ranges(np.stack([
            forward, again + matmul + 2 * attention + together + logits, matmul + logits,
        ]))),
        (4 + 12 / (data if sharded else 1)) * total,
        _ranges(np.stack([np.full(gpt.layers, 2.0 * s * b * h if recompute else kept)]))[0],
        np.where(offered, kept if recompute else 0.0, 0.0),
        32 * total / (data if sharded else 1) / machine.memory_bytes_per_s,
        np.where(offered, reduced, 0.0),
        entry=border,
        exit=border,
    )  # fmt: skip


def _ranges(per_layer: Array) -> Array:
    """[figure, start, end]: sums over layers, none where a range does not end behind its start."""
    sums = np.concatenate((np.zeros((len(per_layer), 1)), per_layer.cumsum(axis=1)), axis=1)
    made: Array = np.maximum(0.0, sums[:, None, :] - sums[:, :, None])
    return made
