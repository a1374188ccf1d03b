"""Determines the contents of a tensor's padding, and of its gradient's.

zero     zeros: a parameter, or a tensor that is linear in one
copy     copies of the last sample's entry: an input, or a tensor computed from inputs
finite   other finite numbers

In the forward, the contents determine where padding must be overwritten.  In the backward, gradients in
the padding must be zero wherever the gradient of an operand without the padded factor would sum them
(`check_gradients`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from autopar.errors import PaddingError
from autopar.ir.graph import Graph, Node, is_random
from autopar.rules.instance import Instance
from autopar.sharding.padding.spread import Touch

State = Literal["zero", "copy", "finite"]
StateOf = Callable[[int], State]
"""The contents of the padding, by position of the operand."""


def made_state(node: Node, instance: Instance, touch: Touch, state: StateOf) -> State:
    """Return the contents of the padding in the outputs that have the factor."""
    for group in instance.linear:
        if group and all(place in touch.read and state(place) == "zero" for place in group):
            return "zero"
    copies = all(state(place) == "copy" for place in touch.read)
    return "copy" if copies and not is_random(node) else "finite"


def to_be_zeroed(instance: Instance, touch: Touch, state: StateOf) -> tuple[int, ...]:
    """Return the operands to overwrite with zeros so that the padding adds nothing to a sum."""
    ways = [
        tuple(p for p in sorted(group) if p in touch.read and state(p) != "zero")
        for group in instance.linear
        if any(place in touch.read for place in group)
    ]
    if not ways:
        raise PaddingError(f"{instance.rule} is not linear in what it sums over {touch.factor}.")
    return min(ways, key=len)


def check_gradients(
    graph: Graph,
    touched: Mapping[str, Iterable[tuple[Touch, Instance]]],
    state: Callable[[str, int], State],
    masks: Iterable[str],
) -> None:
    """Raise `PaddingError` if a gradient in the padding would reach a tensor without padding.

    Such gradients arise in products whose other operand is not zero there.  They end at masks, and at
    parameters, where the padding is cut off.
    """
    dirty: set[tuple[str, int]] = set()
    masking = set(masks)
    for node in reversed(graph.nodes):
        if node.name in masking:
            continue
        for touch, instance in touched.get(node.name, ()):
            arrives = touch.way == "zeros" or any(
                (node.outputs[place].name, pad.dim) in dirty for place, pad in touch.made.items()
            )
            if not arrives:
                continue
            for place, name in enumerate(node.operands):
                if not graph.tensors[name].differentiable or _protected(
                    place, node, instance, touch, state
                ):
                    continue
                if place in touch.read:
                    dirty.add((name, touch.read[place].dim))
                elif touch.way != "zeros":
                    raise PaddingError(
                        f"{node.path} ({node.op}) would add up gradients of the padding for {name}."
                    )


def _protected(
    place: int,
    node: Node,
    instance: Instance,
    touch: Touch,
    state: Callable[[str, int], State],
) -> bool:
    """Return whether an operand's derivative in the padding is a product with zeros."""
    for group in instance.linear:
        carrying = [other for other in group if other in touch.read]
        zeros = all(
            state(node.operands[other], touch.read[other].dim) == "zero" for other in carrying
        )
        if place not in group and carrying and zeros:
            return True
    return False
