"""What selective recomputation keeps of partial sums: their reductions, priced where they are reduced.

A block under selective recomputation keeps the results of its products.  Of a result that is a partial
sum it keeps the reduction, whose size depends on the conversion, not on the operator alone.  So the
bytes are in the table of the conversion.  The second run finds the reduction in the cache and does not
communicate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from autopar.cost.once import Once, signature
from autopar.cost.prices import Prices
from autopar.cost.routes import Closure
from autopar.ir.blocks import Block
from autopar.ir.conversion import Step
from autopar.ir.graph import SAVES_NOTHING, Graph, Node, Saved, Tensor
from autopar.ir.placement import P, Sharding
from autopar.memory.shards import local_nbytes
from autopar.sharding.space import Candidates
from autopar.sharding.timed import TimedCosts
from autopar.sharding.uses import Forms
from autopar.solver.problem import Array, Factor, TimedBytes


class KeptReductions:
    """The tensors of one graph whose reductions selective recomputation keeps, and what that costs."""

    def __init__(
        self,
        graph: Graph,
        candidates: Candidates,
        prices: Prices,
        saved: Mapping[str, Saved],
        timed: TimedCosts,
        once: Once,
    ) -> None:
        self._graph, self._prices, self._saved = graph, prices, saved
        self._modes, self._timed, self._once = candidates.recompute, timed, once
        self._block_of: dict[str, str] = {}
        self._again: set[str] = set()

    def add_block(self, block: Block) -> None:
        """Note that a block may be recomputed."""
        self._block_of |= {node.name: block.path for node in block.nodes}
        self._again |= {node.name for node in block.run_again(self._saved)}

    def keeps(self, tensor: Tensor) -> bool:
        """Return whether a tensor is an expensive result that only its own block reads."""
        maker = self._graph.producer[tensor.name]
        if maker.name not in self._again or "selective" not in self._modes:
            return False
        place = [output.name for output in maker.outputs].index(tensor.name)
        readers = self._graph.consumers[tensor.name]
        own = self._block_of[maker.name]
        return (
            place in self._saved.get(maker.name, SAVES_NOTHING).cached
            and bool(readers)
            and tensor.name not in self._graph.results
            and all(self._block_of.get(reader.name) == own for reader in readers)
        )

    def places(self, node: Node) -> tuple[int, ...]:
        """Return the outputs of an operator whose partial sums are counted at their conversions."""
        return tuple(place for place, output in enumerate(node.outputs) if self.keeps(output))

    def factor(
        self,
        scope: tuple[int, int, int],
        tensor: Tensor,
        readers: Sequence[Node],
        closure: Closure,
        made: Forms,
        forms: Forms,
    ) -> Factor:
        """Return the costs of a conversion, with tables [made, forms, modes].

        `scope` are the variables of the made form, the read form and the block.
        """
        repeats = any(reader.name in self._again for reader in readers)

        def seconds() -> Array:
            forward = closure.along(self._forward(tensor, reduces=True), made, forms)
            others = closure.along(self._forward(tensor, reduces=False), made, forms)
            more = {"none": 0.0 * forward, "selective": others, "full": forward}
            once = closure.matrix(made, forms)
            return np.stack([once + repeats * more[mode] for mode in self._modes], axis=-1)

        def kept() -> Array:
            held = np.array([local_nbytes(tensor, form, self._prices.mesh) for form in forms])
            table = np.zeros((len(made), len(forms), len(self._modes)))
            partial = [place for place, form in enumerate(made) if is_partial(form)]
            table[partial, :, self._modes.index("selective")] = held
            return table

        also = (signature(tensor), self._modes, repeats)
        spent = self._once(seconds, "reduced seconds", closure, made, forms, also=also)
        nbytes = self._once(kept, "reduced bytes", made, forms, also=also[:2])
        timed = self._timed.of_conversion(tensor, readers, closure, made, forms)
        every = [replace(each, nbytes=self._in_each_mode(each.nbytes)) for each in timed]
        since, until = self._timed.until_run_again(tensor, readers)
        if nbytes.any() and since < until:
            every.append(TimedBytes(since, until, nbytes))
        return Factor(scope, spent, kept=nbytes, timed=tuple(every))

    def _in_each_mode(self, table: Array) -> Array:
        count = len(self._modes)
        return self._once(lambda: np.stack([table] * count, axis=-1), "modes of", table, also=count)

    def _forward(self, tensor: Tensor, reduces: bool) -> Callable[[Step], float]:
        """Return what a step's forward costs: of all steps, or of those that reduce nothing."""

        def of_step(step: Step) -> float:
            if not reduces and step.source[step.axis] is P:
                return 0.0
            return self._prices.forward(step, tensor)

        return of_step


def is_partial(form: Sharding) -> bool:
    """Return whether ranks hold partial sums of a tensor on some axis."""
    return any(kind is P for kind in form.types)
