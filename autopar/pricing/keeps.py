"""What autograd keeps until the backward under a plan: every storage once.

Views share their operand's storage, and so do conversions that move nothing (I -> R).  A gather is
*kept* if an operator saves its result; a regathered one leaves only its ticket.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from autopar.graph import Graph, Saved, short
from autopar.mesh import Mesh
from autopar.placement import S, Sharding
from autopar.plan import Conversion, OpSharding
from autopar.pricing.operators import VIEWS, local_nbytes, split

SURE_VIEWS = VIEWS - {"view", "reshape", "flatten"}
"""Operators that never copy; a reshape copies where strides ask for it, so nothing is promised of it."""
Form = tuple[str, Sharding]
"""A tensor in one of its shardings."""


@dataclass(frozen=True)
class Keeps:
    """The storages that operators save under these shardings and conversions."""

    graph: Graph
    shardings: Mapping[str, OpSharding]
    conversions: tuple[Conversion, ...]
    mesh: Mesh
    saved: Mapping[str, Saved]

    def nbytes(self) -> int:
        """Bytes of all saved storages, parameters at rest excluded."""
        gone = {(c.tensor, c.target) for c in self.conversions if c.regather}
        resting = {
            (node.outputs[0].name, self.shardings[node.name].outputs[0])
            for node in self.graph.leaves("parameter")
        }
        kept = self.saved_storages - gone - resting
        return sum(self._local_nbytes(form) for form in kept) + self._extra_nbytes()

    def effective(self) -> tuple[Conversion, ...]:
        """The conversions, regathered only where somebody needs the result in the backward.

        That is an operator that saves it or a view of it, or a regathered gather that starts from it.
        """
        storage = self._storages(SURE_VIEWS)
        needed = {storage[form] for form in self._saved_forms()}
        checked: list[Conversion] = []
        for conversion in reversed(self.conversions):
            wanted = conversion.regather and (conversion.tensor, conversion.target) in needed
            if wanted:
                needed.add(storage[conversion.tensor, conversion.source])
            checked.append(replace(conversion, regather=wanted))
        return tuple(reversed(checked))

    @cached_property
    def saved_storages(self) -> frozenset[Form]:
        """The storage of every tensor that some operator saves."""
        return frozenset(self.storage[form] for form in self._saved_forms())

    @cached_property
    def storage(self) -> Mapping[Form, Form]:
        """The form whose storage each form lives in; a reshape counts as a view."""
        return self._storages(VIEWS)

    def _storages(self, views: frozenset[str]) -> Mapping[Form, Form]:
        found: dict[Form, Form] = {}
        by_tensor: defaultdict[str, list[Conversion]] = defaultdict(list)
        for conversion in self.conversions:
            by_tensor[conversion.tensor].append(conversion)
        for node in self.graph.nodes:
            sharding = self.shardings[node.name]
            for tensor, form in zip(node.outputs, sharding.outputs, strict=True):
                made = (tensor.name, form)
                is_view = short(node.op) in views and not node.is_leaf
                found[made] = found[node.operands[0], sharding.inputs[0]] if is_view else made
                for c in by_tensor[tensor.name]:
                    source, target = (tensor.name, c.source), (tensor.name, c.target)
                    found[target] = found[source] if _moves_nothing(c) else target
        return found

    def _saved_forms(self) -> Iterator[Form]:
        for node in self.graph.nodes:
            saved = self.saved.get(node.name, Saved())
            sharding = self.shardings[node.name]
            yield from ((node.operands[i], sharding.inputs[i]) for i in saved.operands)
            yield from ((node.outputs[i].name, sharding.outputs[i]) for i in saved.outputs)

    def _local_nbytes(self, form: Form) -> int:
        return local_nbytes(self.graph.tensors[form[0]], form[1], self.mesh)

    def _extra_nbytes(self) -> int:
        return sum(
            self.saved[node.name].extra_nbytes // split(self.shardings[node.name], self.mesh)
            for node in self.graph.nodes
            if node.name in self.saved
        )


def _moves_nothing(conversion: Conversion) -> bool:
    """Between R, I and N the value stays what it is."""
    ends = (conversion.source[conversion.axis], conversion.target[conversion.axis])
    return all(not isinstance(kind, S) and kind.name in "RIN" for kind in ends)
