"""A published configuration as our own plan: captured, cut, laid out, priced, simulated.

Three layers stand for all: the first with the embeddings, one in the middle, the last with the head.
Each is a stage graph of its own whose layout is forced (Megatron's tensor parallelism, ZeRO's storage)
and priced by `autopar.cost.spent`; a pipeline's stage is a sum of them, its step is simulated.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import torch
from published_facts import Row, machine

from autopar.capture import capture
from autopar.capture.saved import saved
from autopar.cost.estimate import storage_bytes
from autopar.cost.prices import Prices
from autopar.cost.spent import Issued, Spent, issued, once, spent
from autopar.ir.blocks import blocks
from autopar.ir.graph import Graph, Saved
from autopar.ir.mesh import Mesh
from autopar.ir.placement import S
from autopar.ir.split import split
from autopar.memory.of_rank import of_rank
from autopar.memory.recompute_set import RecomputeSet, again
from autopar.memory.saved_tensors import SavedTensors
from autopar.memory.shards import local_nbytes
from autopar.pipeline.build.borders import Border, link_between, seconds
from autopar.pipeline.schedules import Schedule, build
from autopar.pipeline.simulate import Costs, Link, Network, StageCost, Traffic, own_links, simulate
from autopar.plans.plan import Plan
from autopar.request import presets
from autopar.request.constraints import Constraint, from_user
from autopar.sharding.narrow import applies
from autopar.sharding.sharding_problem import Settings, pose, prices_of
from cost_models.collectives import collective_seconds
from cost_models.hardware import Hardware, load

WHOLE = ("*resid_dropout/dropout", "*mlp.dropout/dropout", "*.h.?/add", "*.h.?/received")
"""What Megatron has whole on all ranks between blocks."""


@dataclass(frozen=True, eq=False)
class Part:
    """One of the three layers, laid out."""

    graph: Graph
    plan: Plan
    kept: dict[str, Saved]
    settings: Settings
    mesh: Mesh

    def spent(self, hardware: Hardware) -> Spent:
        """On a machine, with gathers of weights one block ahead, as FSDP has them and our loops."""
        prices = self._prices(hardware)
        run_again, of_microbatch = self._held
        of_step = once(self.graph, self.plan.parameters, prices, self.plan.precision)
        found = spent(
            self.graph, self.plan.choices, of_microbatch, of_step, run_again, prices,
            prices.microbatches,
        )  # fmt: skip
        of_weights = {"forward": 0.0, "backward": 0.0}
        for sent in of_microbatch.sent:
            if sent.weights:
                of_weights[sent.traffic.direction] += prices.awaited(sent.traffic)
        backward_s = found.input_grad_s + found.weight_grad_s
        ahead, behind = of_weights["forward"], of_weights["backward"]
        share = prices.device.overlap
        return replace(
            found,
            forward_s=found.forward_s - share * min(ahead, found.forward_s - ahead),
            input_grad_s=found.input_grad_s - share * min(behind, backward_s - behind),
        )

    @cached_property
    def _held(self) -> tuple[RecomputeSet, Issued]:
        """What runs again, and collectives and memory of a microbatch: the same on any hardware."""
        plan, prices = self.plan, self._prices(load("a100"))
        shardings = {choice.node: choice.sharding for choice in plan.choices}
        kept = of_rank(self.kept, self.graph, shardings, plan.conversions, self.mesh)
        run_again = again(
            self.graph,
            shardings,
            plan.conversions,
            plan.recompute_of,
            kept,
            self.mesh,
            plan.precision,
        )
        keeps = SavedTensors(
            self.graph, shardings, plan.conversions, self.mesh, kept, run_again, plan.precision
        )
        return run_again, issued(self.graph, plan.choices, keeps, prices, plan.precision)

    def rest_nbytes(self, row: Row) -> float:
        """Weights, gradients and optimizer.  ZeRO divides flat buffers, whatever divides the tensors.

        Gradients are whole, as microbatches add to them.  Where they are summed in float32, those of
        16 bits are there as well.
        """
        leaf = {node.target: node.outputs[0] for node in self.graph.leaves("parameter")}
        prices, total = self._prices(machine(row.machine)), 0.0
        for p in self.plan.parameters:
            found = storage_bytes(leaf[p.name], p, prices, self.graph)
            gradient = prices.at_rest(local_nbytes(leaf[p.name], p.leaf, self.mesh), leaf[p.name])
            ways = row.dp if row.zero and not isinstance(p.stored[0], S) else 1
            twice = 1.0 if row.gradients == "float16" else 1.5
            total += found.parameter + twice * gradient + found.optimizer / ways
        return total

    def _prices(self, hardware: Hardware) -> Prices:
        return prices_of(self.mesh, hardware, self.settings)


@dataclass(frozen=True)
class Kind:
    """What decides the three layers: rows that differ in depth and microbatches only have one."""

    hidden: int
    heads: int
    vocabulary: int
    sequence: int
    microbatch: int
    tp: int
    dp: int
    zero: int
    sequence_parallel: bool
    recompute: str
    attention: str
    dropout: float
    half: bool

    @classmethod
    def of(cls, row: Row) -> Kind:
        """The kind of a row.  Selective recomputation is that of a fused kernel."""
        fused = row.recompute == "selective" or row.attention == "sdpa"
        return cls(
            row.hidden, row.heads, row.padded_vocabulary, row.sequence, row.microbatch, row.tp, row.dp,
            row.zero, row.sequence_parallel,
            "none" if row.recompute == "selective" else row.recompute,
            "sdpa" if fused else "megatron", row.dropout, row.gradients == "float16",
        )  # fmt: skip


def parts(row: Row) -> tuple[Part, ...]:
    """First, middle and last layer; equal for rows that differ in depth and microbatches only."""
    return _parts(Kind.of(row))


@cache
def _parts(kind: Kind) -> tuple[Part, ...]:
    graph = _captured(
        kind.hidden, kind.heads, kind.vocabulary, kind.microbatch * kind.dp, kind.sequence,
        kind.attention, kind.dropout,
    )  # fmt: skip
    cuts = [next(n.name for n in graph.nodes if _layer(n.origin.module) == at and not n.is_leaf)
            for at in (1, 2)]  # fmt: skip
    mesh = Mesh.of(kind.dp, kind.tp, names=("data", "tensor"))
    settings = _settings(mesh, kind)
    found = tuple(_part(part, mesh, settings) for part in split(graph, cuts).graphs)
    return tuple(map(_gathering_again, found)) if kind.sequence_parallel else found


def _gathering_again(part: Part) -> Part:
    """Sequence parallelism keeps shards of activations (Korthikanti et al. 2022, section 4.2.2)."""
    again = tuple(
        replace(c, regather=c.source.is_split and not c.target.is_split)
        for c in part.plan.conversions
    )
    return replace(part, plan=replace(part.plan, conversions=again))


def _layer(module: str) -> int:
    parts_ = module.split(".")
    return int(parts_[2]) if parts_[:2] == ["transformer", "h"] and len(parts_) > 2 else -1


@cache
def _captured(
    hidden: int, heads: int, vocabulary: int, samples: int, sequence: int, attention: str,
    dropout: float,
) -> Graph:  # fmt: skip
    import transformers

    transformers.AttentionInterface.register("megatron", _attention)
    config = transformers.GPT2Config(
        n_layer=3, n_head=heads, n_embd=hidden, vocab_size=vocabulary, n_positions=sequence,
        activation_function="gelu_pytorch_tanh", use_cache=False, attn_implementation=attention,
        attn_pdrop=0.0 if attention == "sdpa" else dropout, resid_pdrop=dropout,
        embd_pdrop=dropout, bos_token_id=0, eos_token_id=0,
        loss_type="ForCausalLM",
    )  # fmt: skip
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        model = transformers.GPT2LMHeadModel(config).to(torch.bfloat16).train()
    ids = torch.zeros(samples, sequence, dtype=torch.int64, device="meta")
    return capture(model, {"input_ids": ids, "labels": ids})


def _attention(
    module: Any, query: Any, key: Any, value: Any, mask: Any, dropout: float = 0.0, **_: Any
) -> tuple[Any, None]:
    """As Megatron writes it: two products; scale, mask and softmax are one kernel between them."""
    scores = torch.softmax(query @ key.transpose(-1, -2), dim=-1)
    scores = torch.nn.functional.dropout(scores, dropout, module.training)
    return (scores @ value).transpose(1, 2).contiguous(), None


def _settings(mesh: Mesh, kind: Kind) -> Settings:
    """Everything forced.  Gradients in 16 bits: the optimizer keeps 12 bytes of its own (K = 12)."""
    tensor = "megatron_sp" if kind.sequence_parallel else "megatron"
    forced = [c for c in presets.load(tensor, mesh) if c.axis == "tensor"]
    data = presets.load({0: "ddp", 1: "zero2", 3: "fsdp"}[kind.zero], mesh)
    forced += [c for c in data if c.axis == "data"]
    whole: tuple[Constraint, ...] = ()
    if not kind.sequence_parallel and kind.tp > 1:
        whole = from_user({f"tensor:{p}": {"tensor": "I"} for p in WHOLE}, mesh)
    optional = tuple(replace(c, optional=True) for c in whole)
    return Settings(
        states=6.0 if kind.half else 2.0,
        optimizer="AdamW(fused=True)",  # as Megatron and DeepSpeed have it
        precision="as the model" if kind.half else "bfloat16",
        constraints=(*forced, *optional),
        padding=(),
        pads_batch=False,
        recompute=None if kind.recompute == "none" else kind.recompute,  # type: ignore[arg-type]
        first=False,
    )


def _part(graph: Graph, mesh: Mesh, settings: Settings) -> Part:
    kept = saved(graph, "cuda")
    spoken = tuple(c for c in settings.constraints if applies(c, graph))
    own = replace(
        settings, constraints=spoken, recompute=settings.recompute if blocks(graph) else None
    )
    posed = pose(graph, mesh, load("a100"), own, kept)
    plan = posed.plan(posed.solve())
    return Part(graph, plan, kept, own, mesh)


@dataclass(frozen=True)
class Predicted:
    """Seconds of a step, and bytes of the fullest rank."""

    seconds: float
    nbytes: float


class Simulator:
    """Predicts rows on one machine; parts that rows have in common are priced once."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self._known: dict[Part, Spent] = {}

    def predict(self, row: Row) -> Predicted:
        """A row's step."""
        first, middle, last = (
            replace(self._spent(part), rest_nbytes=part.rest_nbytes(row)) for part in parts(row)
        )
        sizes = row.sizes
        costs = []
        for stage, size in enumerate(sizes):
            chosen = [middle] * size
            if stage == 0:
                chosen[:1] = [first]
            if stage == len(sizes) - 1:
                chosen[-1:] = [last]
            costs.append(_stage(row, chosen))
        schedule = _schedule(row.pp, row.microbatches, row.virtual)
        for stage in (0, -1):
            summed = costs[stage].reduction + _tied_seconds(row, self._hardware)
            costs[stage] = replace(costs[stage], reduction=summed)
        simulated = simulate(schedule, Costs(tuple(costs), *_traffic(row, self._hardware)))
        return Predicted(simulated.step, max(simulated.peaks))

    def _spent(self, part: Part) -> Spent:
        if part not in self._known:
            self._known[part] = part.spent(self._hardware)
        return self._known[part]


def _stage(row: Row, layers: list[Spent]) -> StageCost:
    """Layers one after the other; the memory of the largest operator is needed once."""
    rest = sum(each.rest_nbytes for each in layers)
    return StageCost(
        forward=sum(each.forward_s for each in layers),
        input_gradient=sum(each.input_grad_s for each in layers),
        weight_gradient=sum(each.weight_grad_s for each in layers),
        kept=sum(each.kept_nbytes for each in layers),
        kept_for_weights=sum(each.kept_nbytes for each in layers),
        working=max(each.working_nbytes for each in layers),
        static=rest,
        reduction=sum(each.hideable_s - each.hidden_s for each in layers),
        update=sum(each.exposed_s for each in layers),
    )


@cache
def _schedule(workers: int, microbatches: int, virtual: int) -> Schedule:
    if virtual == 1:
        return build("1f1b", workers, microbatches)
    return build("interleaved", workers, microbatches, workers * virtual)


def _traffic(row: Row, hardware: Hardware) -> tuple[tuple[Traffic, ...], Network]:
    """Activations of a microbatch between neighbours; one byte is one second.

    Tensor-parallel ranks send a part each (Narayanan et al. 2021, section 4.1; DeepSpeed's pipeline
    engine, `is_pipe_partitioned` and `is_grad_partitioned`).
    """
    link = link_between(hardware, row.gpus)
    ranks = row.dp * row.tp
    nbytes = 2.0 * row.microbatch * row.dp * row.sequence * row.hidden
    border = Border(ranks, ranks)
    took = seconds(nbytes, border, border, link)
    edges = tuple(Traffic(s, s + 1, took, took) for s in range(row.pp * row.virtual - 1))
    return edges, own_links(row.pp, Link(link.latency_s, 1.0))


def _tied_seconds(row: Row, hardware: Hardware) -> float:
    """In which the first and the last stage sum their gradients of the embedding, once a step."""
    if row.pp == 1:
        return 0.0
    itemsize = 2.0 if row.gradients == "float16" else 4.0
    nbytes = itemsize * row.padded_vocabulary / row.tp * row.hidden
    return collective_seconds("all_reduce", nbytes, 2, link_between(hardware, row.gpus))
