"""Computes the costs of all states of operators, parameters and recomputed blocks, as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from autopar.cost.covering import covering
from autopar.cost.once import Once, signature
from autopar.cost.operators import operator_seconds
from autopar.cost.parameters import (
    Travelling,
    storage_nbytes,
    storage_seconds,
    summed_seconds,
)
from autopar.cost.prices import Prices
from autopar.cost.routes import Routes
from autopar.ir.blocks import is_expensive
from autopar.ir.graph import SAVES_NOTHING, Graph, Node, Saved
from autopar.memory.shards import extra_nbytes, local_nbytes, split
from autopar.plans.decisions import OpSharding
from autopar.rules import rule_of
from autopar.sharding.reductions import is_partial
from autopar.sharding.space import Candidates
from autopar.solver.problem import Array

Costs = tuple[Array, Array, Array]
"""Seconds, bytes and uncovered seconds."""


class StateCosts:
    """The costs of one graph's candidates; equal nodes share their arrays."""

    def __init__(
        self,
        graph: Graph,
        candidates: Candidates,
        prices: Prices,
        routes: Routes,
        saved: Mapping[str, Saved],
        once: Once,
    ) -> None:
        self.graph, self.candidates, self.prices, self.routes = graph, candidates, prices, routes
        self.saved, self._once = saved, once
        self._travelling = Travelling.of(graph, prices)
        self._beside = covering(graph, self._travelling.shares)

    def of_storages(self, node: Node) -> Costs:
        """Return the costs of a parameter's storages: seconds per microbatch, bytes at all times."""
        tensor = node.outputs[0]
        options = self.candidates.parameters[node.name]
        is_reached = tensor.name in self.graph.reached

        def priced() -> Costs:
            # Repeated gathers are priced where the weight is used, so `regather` changes nothing here.
            known = {replace(o, regather=False): None for o in options}
            seconds = {
                o: storage_seconds(tensor, o, self.routes, self.prices, self._travelling)
                for o in known
            }
            spent = [seconds[replace(o, regather=False)] for o in options]
            nbytes = [storage_nbytes(tensor, o, self.prices, is_reached).total for o in options]
            share = 1.0 / self.prices.microbatches
            sums = [summed_seconds(tensor, o.leaf, self.prices) for o in options]
            return (
                share * np.array([each.visible_s for each in spent]) + (1 - share) * np.array(sums),
                np.array(nbytes, dtype=float),
                share * np.array([each.hideable_s for each in spent]),
            )

        return self._once(priced, "storages", options, also=(signature(tensor), is_reached))

    def of_operator(self, node: Node, kept: tuple[int, ...]) -> Costs:
        """Return the costs of forward and backward.

        The bytes are those of the operands and outputs at the positions `kept`, and of anything else
        that the operator saves.
        """
        options = self.candidates.operators[node.name]
        operands = tuple(self.graph.tensors[name] for name in node.operands)
        tensors = (*operands, *node.outputs)
        mesh, saved = self.prices.mesh, self._saved(node)

        def priced() -> Costs:
            spent = [operator_seconds(node, o, self.graph, self.prices) for o in options]
            nbytes = [
                extra_nbytes(saved, node, o, self.graph, mesh)
                + sum(local_nbytes(tensors[i], (*o.inputs, *o.outputs)[i], mesh) for i in kept)
                for o in options
            ]
            covers = np.array([each.backward_s for each in spent]) * self._covering(node)
            seconds = np.array([each.total_s for each in spent])
            return seconds, np.array(nbytes, dtype=float), -covers

        # Equal nodes, with the same operator and arguments on similar tensors, share one rule object.
        return self._once(
            priced,
            "operator",
            options,
            rule_of(node, self.graph),
            also=(
                kept,
                (saved.extra_nbytes, saved.like),
                self.graph.adding.get(node.name),
                self._covering(node),
            ),
        )

    def of_recomputation(self, node: Node, nbytes: Array, reduced: tuple[int, ...] = ()) -> Costs:
        """Return, for each candidate and mode, the seconds of another forward, and the bytes kept.

        `nbytes` are the bytes that the candidates keep without recomputation, and `reduced` the outputs
        whose partial sums are not kept, because their reductions are.
        """
        options = self.candidates.operators[node.name]
        modes = self.candidates.recompute

        def priced() -> Costs:
            spent = [operator_seconds(node, o, self.graph, self.prices) for o in options]
            forward = np.array([each.forward_s for each in spent])
            results = self.cached(node, reduced)
            seconds, kept = np.zeros((2, len(options), len(modes)))
            for place, mode in enumerate(modes):
                if mode == "none":
                    kept[:, place] = nbytes
                    continue
                if mode == "selective":
                    kept[:, place] = results
                if mode != "selective" or not is_expensive(node):
                    seconds[:, place] = forward
            return seconds, kept, -self._covering(node) * seconds

        cached = self._saved(node).cached, self._saved(node).cached_nbytes
        rule = rule_of(node, self.graph)
        also = (modes, cached, self._covering(node), reduced)
        return self._once(priced, "recompute", options, rule, nbytes, also=also)

    def _covering(self, node: Node) -> float:
        """Return the share of an operator's backward that can hide gradient reductions."""
        return self.prices.covering_share * self._beside[node.name]

    def cached(self, node: Node, reduced: tuple[int, ...] = ()) -> Array:
        """Return the bytes that selective recomputation keeps of an operator, by candidate."""
        options, saved = self.candidates.operators[node.name], self._saved(node)

        def priced() -> Array:
            return np.array([self._cached_nbytes(node, o, reduced) for o in options], dtype=float)

        also = (saved.cached, saved.cached_nbytes, reduced)
        return self._once(priced, "cached", options, rule_of(node, self.graph), also=also)

    def _cached_nbytes(self, node: Node, option: OpSharding, reduced: tuple[int, ...]) -> int:
        """Return the bytes that selective recomputation keeps of an operator."""
        saved, mesh = self._saved(node), self.prices.mesh
        inside = saved.cached_nbytes // split(option, mesh)
        kept = (
            place
            for place in saved.cached
            if place not in reduced or not is_partial(option.outputs[place])
        )
        return inside + sum(
            local_nbytes(node.outputs[place], option.outputs[place], mesh) for place in kept
        )

    def _saved(self, node: Node) -> Saved:
        return self.saved.get(node.name, SAVES_NOTHING)
