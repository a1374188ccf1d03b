"""Determines the storages that autograd saves for the backward under a plan, each once.

Views share their operand's storage, and so do conversions that move nothing (I -> R).  A gathered tensor
is kept if an operator saves it.  Of a regathered one, only its source is kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from autopar.ir.graph import SAVES_NOTHING, Graph, Node, Saved, short
from autopar.ir.mesh import Mesh
from autopar.ir.placement import S
from autopar.memory.recompute_set import NOTHING, Form, RecomputeSet
from autopar.memory.shards import VIEWS, local_nbytes
from autopar.plans.decisions import Conversion, OpSharding

SURE_VIEWS = VIEWS - {"view", "reshape", "flatten"}
"""Operators that never copy; a reshape may copy, depending on strides."""
IN_ORDER = frozenset({"squeeze", "unsqueeze"})
"""Views that keep a tensor in row-major order."""
RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
REORDERED = frozenset({"t", "transpose", "permute", "movedim"}) | RECURRENT
"""Operators whose output may not be in row-major order; recurrent ones with ``batch_first``."""
LAYS_OUT = RECURRENT | {"einsum"}
"""Operators that, depending on strides, copy an operand into another layout and save the copy."""


@dataclass(frozen=True)
class SavedTensors:
    """The storages that operators save under these shardings and conversions."""

    graph: Graph
    shardings: Mapping[str, OpSharding]
    conversions: tuple[Conversion, ...]
    mesh: Mesh
    saved: Mapping[str, Saved]
    """What each operator saves on one rank, by node name."""
    again: RecomputeSet = NOTHING
    """The recomputed blocks, which keep their inputs and little else."""
    precision: str = "float32"
    prefetch: bool = False
    """Whether loops gather the weights of the next block while one runs (`Plan.prefetch`)."""

    def nbytes(self) -> int:
        """Return the bytes of all saved storages, without parameters at rest."""
        found = (node for node in self.graph.nodes if node.name not in self.again.node_names)
        inside = sum(self.cached_nbytes(node) for node in self.again.caching)
        return self._nbytes_of(self.saved_storages) + sum(map(self.extra_nbytes, found)) + inside

    def _nbytes_of(self, storages: Iterable[Form]) -> int:
        gone = {(c.tensor, c.target) for c in self.conversions if c.regather}
        resting = {
            (node.outputs[0].name, self.shardings[node.name].outputs[0])
            for node in self.graph.leaves("parameter")
        }
        return sum(self.storage_nbytes(form) for form in set(storages) - gone - resting)

    def effective(self) -> tuple[Conversion, ...]:
        """Return the conversions, with `regather` only if the backward needs the result.

        It does if an operator saves the result or a view of it, or if a regathered gather starts from
        it.
        """
        storage = self._storages(_first_of(SURE_VIEWS))
        needed = self._needed(storage)
        checked: list[Conversion] = []
        for conversion in reversed(self.conversions):
            wanted = conversion.regather and (conversion.tensor, conversion.target) in needed
            if wanted:
                needed.add(storage[conversion.tensor, conversion.source])
            checked.append(replace(conversion, regather=wanted))
        return tuple(reversed(checked))

    def _needed(self, storage: Mapping[Form, Form]) -> set[Form]:
        """Return the storages that operators save for any strides of their operands."""
        in_order = self._storages(_first_of(IN_ORDER))
        found = set()
        for node in self._keeping:
            saved, sharding = self._of(node), self.shardings[node.name]
            for place in {*saved.operands, *saved.copied}:
                if self._may_be_copied(node, place):
                    continue
                where = in_order if place in saved.copied else storage
                found.add(where[node.operands[place], sharding.inputs[place]])
            for place in saved.outputs:
                found.add(storage[node.outputs[place].name, sharding.outputs[place]])
        return found

    def _may_be_copied(self, node: Node, place: int) -> bool:
        """Return whether a saved operand may be a copy, as a gather changes its strides."""
        if short(node.op) not in LAYS_OUT:
            return False
        operand = node.operands[place]
        maker = self.graph.producer[operand]
        turned = self._of(maker).turned
        return short(maker.op) in REORDERED or operand in {maker.outputs[at].name for at in turned}

    @cached_property
    def saved_storages(self) -> frozenset[Form]:
        """The storages that operators save or recomputed blocks hold, and sources of regathers."""
        found = self.saved_by(self._keeping) | {self.storage[form] for form in self.again.held}
        for c in reversed(self.conversions):
            if c.regather and (c.tensor, c.target) in found:
                found |= {self.storage[c.tensor, c.source]}
        return found

    @cached_property
    def _keeping(self) -> tuple[Node, ...]:
        """The operators that are not recomputed."""
        dropped = self.again.node_names
        return tuple(node for node in self.graph.nodes if node.name not in dropped)

    def saved_by(self, nodes: Iterable[Node]) -> frozenset[Form]:
        """Return the storages that these operators save."""
        return frozenset(self.storage[form] for form in self._saved_forms(nodes))

    @cached_property
    def storage(self) -> Mapping[Form, Form]:
        """Maps each form to the form whose storage it shares (itself, if it has its own)."""
        return self._storages(self._shares)

    def _storages(self, lies_in: Callable[[Node, int], int | None]) -> Mapping[Form, Form]:
        found: dict[Form, Form] = {}
        by_tensor: defaultdict[str, list[Conversion]] = defaultdict(list)
        for conversion in self.conversions:
            by_tensor[conversion.tensor].append(conversion)
        for node in self.graph.nodes:
            sharding = self.shardings[node.name]
            pairs = zip(node.outputs, sharding.outputs, strict=True)
            for place, (tensor, form) in enumerate(pairs):
                made = (tensor.name, form)
                found[made] = made
                if (below := lies_in(node, place)) is not None:
                    found[made] = found[node.operands[below], sharding.inputs[below]]
                for c in by_tensor[tensor.name]:
                    source, target = (tensor.name, c.source), (tensor.name, c.target)
                    found[target] = found[source] if moves_nothing(c) else target
        return found

    @cached_property
    def turned(self) -> frozenset[Form]:
        """The forms that are not in row-major order."""
        found = {
            (node.outputs[place].name, self.shardings[node.name].outputs[place])
            for node in self.graph.nodes
            for place in self._of(node).turned
        }
        for c in self.conversions:
            if moves_nothing(c) and (c.tensor, c.source) in found:
                found.add((c.tensor, c.target))
        return frozenset(found)

    def _shares(self, node: Node, output: int) -> int | None:
        """Return the operand whose storage an output shares, None if it has its own."""
        shares = self._of(node).shares
        return shares[output] if shares else None

    def _saved_forms(self, nodes: Iterable[Node]) -> Iterator[Form]:
        for node in nodes:
            saved, sharding = self._of(node), self.shardings[node.name]
            yield from ((node.operands[i], sharding.inputs[i]) for i in saved.operands)
            yield from ((node.outputs[i].name, sharding.outputs[i]) for i in saved.outputs)

    def storage_nbytes(self, form: Form) -> int:
        """Return a storage's bytes on one rank, including those beyond the tensor's elements."""
        return local_nbytes(self.graph.tensors[form[0]], form[1], self.mesh) + self._spare(form)

    def _spare(self, form: Form) -> int:
        node = self.graph.producer[form[0]]
        spare = self._of(node).spare
        if not spare:
            return 0
        place = [tensor.name for tensor in node.outputs].index(form[0])
        is_made_so = self.shardings[node.name].outputs[place] == form[1]
        return spare[place] if is_made_so else 0

    def extra_nbytes(self, node: Node) -> int:
        """Return the bytes on one rank that an operator saves besides operands and outputs."""
        return self._of(node).extra_nbytes

    def cached_nbytes(self, node: Node) -> int:
        """Return the bytes on one rank that selective recomputation keeps inside an operator."""
        return self._of(node).cached_nbytes

    def _of(self, node: Node) -> Saved:
        return self.saved.get(node.name, SAVES_NOTHING)


def moves_nothing(conversion: Conversion) -> bool:
    """Return whether the local value is unchanged: a conversion between R, I and N."""
    ends = (conversion.source[conversion.axis], conversion.target[conversion.axis])
    return all(not isinstance(kind, S) and kind.name in "RIN" for kind in ends)


def _first_of(views: frozenset[str]) -> Callable[[Node, int], int | None]:
    """Return a function that names operand 0 as the storage of outputs of these operators."""
    return lambda node, _: 0 if short(node.op) in views and not node.is_leaf else None
