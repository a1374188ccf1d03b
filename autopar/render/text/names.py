"""Display names of a plan's tensors and operators, with or without the graph.

A plan names nodes as the emitted code does: ``hidden_states_7``, ``model_layers_0_mlp_up_weight``.
With the graph they get their module's path; without it, numbered copies share one name.
"""

from __future__ import annotations

import re
from collections.abc import Container

from autopar.ir.graph import Graph
from autopar.ir.placement import N, Sharding
from autopar.plans.plan import Plan

_SUFFIX = re.compile(r"_\d+$")


class Names:
    """Names of one plan."""

    def __init__(self, plan: Plan, graph: Graph | None) -> None:
        self._graph = graph
        self._nodes = {choice.node for choice in plan.choices}
        self._parameters = {
            re.sub(r"\W", "_", parameter.name): parameter.name for parameter in plan.parameters
        }

    def operator(self, node: str) -> str:
        """Return ``model.layers.0.mlp/linear``; without the graph, the node's name without number."""
        return self._graph.node[node].path if self._graph else self._base(node)

    def tensor(self, name: str) -> str:
        """Return a parameter's own name; for others module and variable, or one of the two."""
        if name in self._parameters:
            return self._parameters[name]
        module = self._graph.producer[name].origin.module if self._graph else ""
        base = self._base(name)
        if not module or module.rpartition(".")[2] == base:
            return module or base
        return f"{module}/{base}"

    def differentiable(self, tensor: str, *forms: Sharding) -> bool:
        """Return whether the tensor has a gradient; without the graph, whether no type is N."""
        if self._graph:
            return self._graph.tensors[tensor].differentiable
        return not any(kind is N for sharding in forms for kind in sharding)

    def _base(self, name: str) -> str:
        return base(name, self._nodes)


def base(name: str, nodes: Container[str]) -> str:
    """Return the name of which this is a numbered copy: ``ln_1`` for ``ln_1_4``, but not ``ln``."""
    shorter = _SUFFIX.sub("", name)
    return shorter if shorter in nodes or f"{shorter}_" in nodes else name
