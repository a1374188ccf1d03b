"""Prices the uses of a weight: gathers for its readers, kept or repeated, perhaps shared by several."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from autopar.cost.once import Once, signature
from autopar.cost.prices import Prices
from autopar.cost.routes import Closure
from autopar.ir.graph import Node
from autopar.ir.placement import Sharding
from autopar.memory.shards import local_nbytes
from autopar.sharding.space import Candidates
from autopar.solver.problem import Array

Forms = tuple[Sharding, ...]
Tables = tuple[Array, Array]
"""Tables of seconds and of bytes."""


class Uses:
    """Cost tables over a weight's storages and the shardings in which it is read."""

    def __init__(
        self, candidates: Candidates, prices: Prices, together: Mapping[str, float], once: Once
    ) -> None:
        """`together`: for each weight, how many weights of its size share its messages."""
        self._candidates, self._prices = candidates, prices
        self._together, self._once = together, once

    def leaves(self, parameter: Node) -> Forms:
        """Return the leaf sharding of each storage, from which forward and backward start."""
        storages = self._candidates.parameters[parameter.name]
        return self._once(lambda: tuple(s.leaf for s in storages), "leaves", storages)

    def tables(self, node: Node, closure: Closure, forms: Forms, in_block: bool) -> Tables:
        """Return the costs of a weight's gathers at one use: bytes if kept, seconds if repeated.

        In a block there is one table per recomputation mode: a recomputed block always gathers again.
        """
        tensor = node.outputs[0]
        options = self._candidates.parameters[node.name]

        def priced() -> Tables:
            leaves = {leaf: place for place, leaf in enumerate(dict.fromkeys(self.leaves(node)))}
            of_leaf = [leaves[option.leaf] for option in options]
            once = closure.matrix(leaves, forms)[of_leaf]
            again = closure.along(
                lambda step: self._prices.again(step, tensor, self._together[tensor.name]),
                leaves,
                forms,
            )[of_leaf]
            regathers = np.array([option.regather for option in options])[:, None]
            held = np.array([local_nbytes(tensor, form, self._prices.mesh) for form in forms])
            moves = np.array([[leaf != form for form in forms] for leaf in leaves])[of_leaf]
            seconds = once + np.where(regathers, again, 0.0)
            nbytes = np.where(moves & ~regathers, held[None, :], 0.0)
            if not in_block:
                return seconds, nbytes
            modes = self._candidates.recompute
            repeated = once + again
            return (
                np.stack([seconds if mode == "none" else repeated for mode in modes], axis=-1),
                np.stack([nbytes if mode == "none" else 0.0 * nbytes for mode in modes], axis=-1),
            )

        also = (signature(tensor), self._candidates.recompute if in_block else None)
        return self._once(priced, "uses", options, closure, forms, also=also)

    def beside(
        self, node: Node, closure: Closure, shared: Forms, read: Forms, in_block: bool
    ) -> Tables:
        """Return the same tables for one of several readers, for each sharding that they may share.

        Reading the shared sharding costs nothing more.
        """
        tables = self.tables(node, closure, read, in_block)

        def priced() -> Tables:
            alone = np.array([[form != each for each in read] for form in shared])
            seconds, nbytes = (
                np.where(alone.reshape(*alone.shape, *(1,) * (table.ndim - 2)), table[:, None], 0.0)
                for table in tables
            )
            return seconds, nbytes

        return self._once(priced, "beside", tables, shared, read)
