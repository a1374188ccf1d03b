"""Computes how much of the weights' gathers is hidden where loops gather one block ahead.

A gather that starts while another block computes is hidden by at most that block's compute, less what
is lost to contention (`Prices.hidden_share`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autopar.cost.prices import Prices
from autopar.ir.conversion import Traffic
from autopar.ir.graph import Node
from autopar.memory.lifetimes import Lifetimes
from autopar.memory.messages import Carried, made_by
from autopar.memory.shards import local_nbytes


@dataclass(frozen=True, slots=True)
class Prefetched:
    """Hidden seconds of gathers in one microbatch's forward and backward."""

    forward_s: float = 0.0
    backward_s: float = 0.0


def prefetched(
    lives: Lifetimes,
    forward_s: Mapping[str, float],
    backward_s: Mapping[str, float],
    prices: Prices,
) -> Prefetched:
    """Return what is hidden; the mappings are the compute seconds of each operator."""
    forward = backward = 0.0
    again = lives.regathered
    for function, collective in lives.early.items():
        axis = collective.conversions[0].axis
        share = prices.hidden_share(axis)
        own = [node.name for node in _nodes(lives, function)]
        before = [node.name for node in _nodes(lives, function - 1)]
        cover = prices.covering_share
        gather_s = share * prices.awaited(_gather(collective, lives, whole=True))
        forward += min(gather_s, cover * sum(forward_s[name] for name in before))
        is_rerun = own[0] in lives.keeps.again.node_names
        if is_rerun or any(made_by(c) in again for c in collective.conversions):
            gather_s = share * prices.awaited(_gather(collective, lives, whole=is_rerun))
            backward += min(gather_s, cover * sum(backward_s[name] for name in own))
    return Prefetched(forward, backward)


def _nodes(lives: Lifetimes, function: int) -> list[Node]:
    return [lives.graph.nodes[place] for place in lives.functions.places[function]]


def _gather(collective: Carried, lives: Lifetimes, whole: bool) -> Traffic:
    """Return the gather's traffic: of all its weights, or of those that the backward gathers again."""
    conversions = [c for c in collective.conversions if whole or made_by(c) in lives.regathered]
    tensors, mesh = lives.graph.tensors, lives.keeps.mesh
    nbytes = sum(local_nbytes(tensors[c.tensor], c.target, mesh) for c in conversions)
    return Traffic(conversions[0].axis, "all_gather", "forward", nbytes)
