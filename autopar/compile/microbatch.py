"""Builds microbatch graphs whose accumulated gradients equal those of the whole batch.

The mean loss of a batch is sum / count, where count is of the whole batch: with ignored targets the
counts of microbatches differ.  Therefore the denominators are taken out of the loss.  A small graph
computes them for the whole batch before the first backward; the microbatch graph has them as inputs.

The types of tensors prove that the loss is a sum over samples: on a mesh axis that splits the batch,
every operator must work on its local samples alone, and the loss must be a partial sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from autopar.compile.shares import Types, check_shares
from autopar.errors import InputError
from autopar.ir.graph import Arg, Graph, Node, Ref, Tensor, short
from autopar.ir.mesh import Mesh
from autopar.ir.placement import N, P, R, S, Type
from autopar.plans.decisions import OpSharding
from autopar.rules import candidates
from autopar.sharding.sharding_problem import batch_inputs
from autopar.sharding.whole_operators import why_whole
from autopar.utils.messages import argument

PREFIX = "denominator_"
_PLACED = {"arange", "linspace", "eye"}
"""Operators whose result depends on absolute positions: a part's is not a slice of the whole's."""
_LINEAR = {"add", "sub", "neg", "to", "_to_copy", "alias", "clone", "mul", "div", "reshape", "view"}


@dataclass(frozen=True)
class Parted:
    """The graphs of a step in microbatches.

    `counts` computes the whole batch's denominators, which `microbatch` has as inputs.  It is None if
    every denominator is a number.
    """

    counts: Graph | None
    microbatch: Graph


def as_one() -> str:
    """Return the remedy in error messages for a batch that cannot be divided."""
    return f"Use {argument('microbatches', 1)}."


def part(whole: Graph, microbatch: Graph, pieces: int) -> Parted:
    """Make the graphs of a step in `pieces` equal microbatches.

    `whole` is the graph of a batch and `microbatch` that of one part, whose constants are those of the
    whole already (`autopar.capture.numbers`).  Raises `InputError` if microbatches would change the
    result; the message names the operator that mixes samples.
    """
    divisions, types = tuple(_divisions(whole)), check_divisible(whole, pieces)
    check_shares(whole, microbatch, types, pieces)
    counts = _counts(whole, divisions)
    return Parted(counts, _with_denominators(microbatch, whole, divisions))


def check_divisible(whole: Graph, pieces: int) -> Types:
    """Return the tensors' possible types on a mesh axis of size `pieces` that splits the batch.

    Raise `InputError` if an operator mixes samples.
    """
    divided = _with_denominators(whole, whole, tuple(_divisions(whole)))
    types = check_separable(divided, pieces)
    _check_state(whole)
    return types


def _check_state(graph: Graph) -> None:
    """Raise `InputError` if forward reads a buffer that it updates.

    A step updates such a buffer once, but each microbatch would update it again.
    """
    changed = {name for name, value in graph.mutations}
    read = {name for node in graph.nodes for name in node.operands}
    for node in graph.leaves("buffer"):
        if node.target in changed and node.outputs[0].name in read:
            raise InputError(
                f"Forward reads the buffer {node.target!r} and changes it, as counters, averages and "
                "spectral_norm do; each microbatch would change it again, and the next would read what "
                f"it left. {as_one()}"
            )


def _by_tensors(divisions: Iterable[Node]) -> list[Node]:
    return [node for node in divisions if isinstance(node.args[1], Ref)]


def _divisions(graph: Graph) -> Iterator[Node]:
    """Yield the divisions that are reached backwards from the loss through linear operators."""
    assert graph.loss is not None
    waiting, seen = [graph.loss], set()
    while waiting:
        node = graph.producer[waiting.pop()]
        if node.name in seen or node.is_leaf:
            continue
        seen.add(node.name)
        if short(node.op) == "div" and not _is_differentiable(node.args[1], graph):
            yield node
        if short(node.op) in _LINEAR:
            waiting += [name for name in node.operands if graph.tensors[name].differentiable]


def _is_differentiable(argument: Arg, graph: Graph) -> bool:
    return isinstance(argument, Ref) and graph.tensors[argument.name].differentiable


def _denominator(node: Node, graph: Graph) -> Tensor | None:
    """Return the divisor of a division, or None if it is a number."""
    divisor = node.args[1]
    return graph.tensors[divisor.name] if isinstance(divisor, Ref) else None


def _counts(whole: Graph, divisions: tuple[Node, ...]) -> Graph | None:
    found = [_denominator(node, whole) for node in divisions]
    names = tuple(dict.fromkeys(t.name for t in found if t is not None))
    if not names:
        return None
    outputs = tuple((f"{PREFIX}{i}", name) for i, name in enumerate(names))
    graph = _only(replace(whole, loss=None, outputs=outputs, mutations=(), aliases=()))
    for node in graph.leaves("parameter"):
        raise InputError(
            f"The loss is divided by something that depends on parameter {node.target!r}; such a loss "
            f"cannot be trained in microbatches. {as_one()}"
        )
    return graph


def _only(graph: Graph) -> Graph:
    """Keep only the nodes on which the graph's results depend."""
    needed = set(graph.results)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if any(tensor.name in needed for tensor in node.outputs):
            kept.append(node)
            needed.update(node.operands)
    return replace(graph, nodes=tuple(reversed(kept)))


def _with_denominators(graph: Graph, whole: Graph, divisions: tuple[Node, ...]) -> Graph:
    """Replace the denominators in a microbatch's graph by inputs with the whole batch's values."""
    inputs: dict[str, Node] = {}
    divisors: dict[str, Arg] = {}
    ours, theirs = _by_tensors(_divisions(graph)), _by_tensors(divisions)
    if len(ours) != len(theirs):
        raise InputError(
            f"The loss is divided by {len(theirs)} tensors for the whole batch, and by {len(ours)} "
            f"for a part of it, so microbatches would change it. {as_one()}"
        )
    for own, node in zip(ours, theirs, strict=True):
        denominator = _denominator(node, whole)
        assert denominator is not None
        if denominator.name not in inputs:
            key = f"{PREFIX}{len(inputs)}"
            inputs[denominator.name] = Node(
                key, "input", outputs=(replace(denominator, name=key),), target=key
            )
        divisors[own.name] = Ref(inputs[denominator.name].name)
    nodes = [
        replace(node, args=(node.args[0], divisors[node.name], *node.args[2:]))
        if node.name in divisors
        else node
        for node in graph.nodes
    ]
    leaves = [node for node in nodes if node.is_leaf]
    rest = [node for node in nodes if not node.is_leaf]
    changed = replace(graph, nodes=(*leaves, *inputs.values(), *rest))
    changed.check()
    needed = _only(changed)
    interface = {n.name for n in changed.nodes if n.op in ("parameter", "buffer", "input")}
    kept = {n.name for n in needed.nodes} | interface
    return replace(changed, nodes=tuple(n for n in changed.nodes if n.name in kept))


def check_separable(graph: Graph, pieces: int) -> dict[str, frozenset[Type]]:
    """Raise `InputError` unless the loss is a sum over samples, where dim 0 of the inputs is the batch.

    Returns the types that each tensor can have on a mesh axis that splits the batch: inputs are
    sharded, parameters are replicated, and a tensor that is uniform along the batch (an expanded
    constant) may be either.
    """
    options = candidates(graph, Mesh.of(pieces, names=("microbatch",)), local_inputs=True)
    split = {node.name for node in batch_inputs(graph)}
    types: dict[str, frozenset[Type]] = {}
    for node in graph.nodes:
        whole = [R if tensor.differentiable else N for tensor in node.outputs]
        found = [frozenset[Type]([S(0) if node.name in split else kind]) for kind in whole]
        if not (node.is_leaf or short(node.op) in _PLACED):
            found = _types(node, options[node.name], types)
        if not all(found):
            raise InputError(
                f"{why_whole(node, graph)} Microbatches would change what the model computes. {as_one()}"
            )
        types |= {tensor.name: kinds for tensor, kinds in zip(node.outputs, found, strict=True)}
    for name, value in graph.mutations:
        if not types[value] <= {N, R}:
            raise InputError(
                f"The buffer {name!r} is updated from the whole batch; microbatches would update it "
                f"from parts. {as_one()}"
            )
    if graph.loss is not None and types[graph.loss] != {P}:
        raise InputError(
            f"The loss is not a sum of its samples' losses, so microbatches would change it. {as_one()}"
        )
    return types


def _types(
    node: Node, options: tuple[OpSharding, ...], types: dict[str, frozenset[Type]]
) -> list[frozenset[Type]]:
    """Return the possible types of each output, given those of the operands."""
    given = [types[name] for name in node.operands]
    suitable = [
        option
        for option in options
        if not option.variant
        and all(form[0] in kinds for form, kinds in zip(option.inputs, given, strict=True))
    ]
    return [
        frozenset(option.outputs[place][0] for option in suitable)
        for place in range(len(node.outputs))
    ]
