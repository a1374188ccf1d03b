"""Restricts candidates to those that the constraints allow, before anything is priced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import NoReturn, TypeVar

from autopar.cost.parameters import Storage
from autopar.errors import ClashError, ConstraintError
from autopar.ir.graph import Graph, Node, Tensor
from autopar.ir.mesh import Mesh
from autopar.ir.placement import S, Sharding, parse_type
from autopar.plans.decisions import OpSharding
from autopar.request.constraints import BATCH, PLACES, Constraint
from autopar.rules.batch import BatchDims
from autopar.rules.worth import worth_splitting

T = TypeVar("T")
Form = tuple[Sharding, S | None]
"""A tensor's sharding, and the split by the constraint's place; None if the tensor has no such dim."""
Where = Mapping[str, BatchDims]
"""By place of `PLACES`: the splits of every operator."""
Forms = Callable[[T], Iterable[Form]]
NEAR = 2
"""Number of similar names of each sort that are suggested if no name matches."""


def narrow(
    candidates: Mapping[str, tuple[OpSharding, ...]],
    storages: Mapping[str, tuple[Storage, ...]],
    graph: Graph,
    mesh: Mesh,
    constraints: tuple[Constraint, ...],
    where: Where,
) -> tuple[dict[str, tuple[OpSharding, ...]], dict[str, tuple[Storage, ...]]]:
    """Return the candidates that the constraints allow.

    Raises `ConstraintError` for a constraint that applies to nothing or cannot be met.  `where` has the
    splits of every operator for each place to which a constraint refers.
    """
    _refuse_unmatched(graph, constraints)
    active = _active(graph)
    kept = dict(candidates)
    rest = dict(storages)
    for place, constraint in enumerate(constraints):
        earlier = constraints[:place]
        _refuse_dims_of_nobody(constraint, graph, active)
        if _is_about_parameters(constraint):
            for name, options in rest.items():
                node = graph.node[name]
                if constraint.matches(node.target):
                    _refuse_dims(constraint, node.target, node.outputs)
                    rest[name] = _filter(
                        options, constraint, mesh, _place(constraint), node.target
                    ) or _refuse_clash(
                        node.target, constraint, storages[name], mesh,
                        [(c, _place(c)) for c in earlier
                         if _is_about_parameters(c) and c.matches(node.target)],
                        _place(constraint),
                    )  # fmt: skip
        for node in graph.nodes:
            indices = _spoken_of(constraint, node, graph, active)
            if indices and not node.is_leaf:
                names = [*node.operands, *(tensor.name for tensor in node.outputs)]
                _refuse_dims(constraint, node.path, [graph.tensors[names[i]] for i in indices])
                dims = _dims(constraint, node, where)
                _refuse_without_place(constraint, node.path, [dims[i] for i in indices])
                kept[node.name] = _filter(
                    kept[node.name], constraint, mesh, _operands(indices, dims), node.path
                ) or _refuse_clash(
                    node.path, constraint, candidates[node.name], mesh,
                    [(c, _operands(spoken, _dims(c, node, where))) for c in earlier
                     if (spoken := _spoken_of(c, node, graph, active))],
                    _operands(indices, dims), _places(node, indices, graph),
                )  # fmt: skip
    return kept, rest


def _dims(constraint: Constraint, node: Node, where: Where) -> tuple[S | None, ...]:
    """Return the split by the constraint's place of each of an operator's operands and outputs."""
    nowhere = (None,) * (len(node.operands) + len(node.outputs))
    return where.get(constraint.place, {}).get(node.name, nowhere)


def applies(constraint: Constraint, graph: Graph) -> bool:
    """Return whether the constraint matches anything in the graph, or need not."""
    if constraint.optional or constraint.pattern == "*":
        return True
    return any(constraint.matches(name) for names in _nameable(constraint, graph) for name in names)


def _filter(
    options: tuple[T, ...],
    constraint: Constraint,
    mesh: Mesh,
    forms: Forms[T],
    name: str,
) -> tuple[T, ...]:
    met: dict[tuple[int, ...], list[T]] = {}
    for option in options:
        ranks = [constraint.rank(form, mesh, batch) for form, batch in forms(option)]
        if None not in ranks:
            counts = tuple(ranks.count(place) for place in range(len(constraint.allowed)))
            met.setdefault(counts, []).append(option)
    return tuple(met[max(met)]) if met else ()


def _refuse_clash(
    name: str,
    constraint: Constraint,
    options: tuple[T, ...],
    mesh: Mesh,
    earlier: list[tuple[Constraint, Forms[T]]],
    forms: Forms[T],
    places: tuple[str, ...] = (),
) -> NoReturn:
    """Raise an error that names the two constraints that clash on `name`, if there are two.

    `options` are all candidates of `name`.  `places` names the tensors there that the constraint is on.
    """
    alone = _filter(options, constraint, mesh, forms, name)
    if not alone:
        raise ConstraintError(
            f"{name}: none of its {len(options)} candidates meets the constraint ({constraint.line})"
            f"{_at_once(places)}. Allow more types there, or relax the constraints on its neighbours."
        )
    for other, its_forms in earlier:
        left = _filter(options, other, mesh, its_forms, name)
        if left and not _filter(left, constraint, mesh, forms, name):
            raise ClashError(
                f"{name}: two constraints clash:\n  {other.line}\n  {constraint.line}\nOf "
                f"{len(options)} candidates the first allows {len(left)}, the second alone "
                f"{len(alone)}, both together none. Change one of them."
            )
    lines = "".join(f"\n  {other.line}" for other, _ in earlier)
    raise ClashError(
        f"{name}: no candidate meets all of these constraints:{lines}\n  {constraint.line}\n"
        "Change one of them."
    )


def _at_once(places: tuple[str, ...]) -> str:
    """Return a note that a pattern means several tensors of one operator; "" if it means one."""
    if len(places) < 2:
        return ""
    return (
        f" on everything that its pattern matches there: {', '.join(places[:-1])} and "
        f"{places[-1]}. Write a pattern that matches only one of them"
    )


def _places(node: Node, indices: tuple[int, ...], graph: Graph) -> tuple[str, ...]:
    """Return an operator's operands and outputs in words, without repetitions."""
    reads = [
        f"what it reads of {leaf.target if leaf.op == 'parameter' else leaf.path}"
        for leaf in map(graph.producer.__getitem__, node.operands)
    ]
    every = [*reads, *("what it makes" for _ in node.outputs)]
    return tuple(dict.fromkeys(every[i] for i in indices))


def _refuse_dims_of_nobody(constraint: Constraint, graph: Graph, active: frozenset[str]) -> None:
    """Raise `ConstraintError` if no matching tensor has the forbidden dim; some may lack it."""
    if constraint.kind != "forbid":
        return
    spoken: list[tuple[str, Tensor]] = []
    for node in graph.nodes:
        if node.op == "parameter" and _is_about_parameters(constraint):
            found = node.outputs if constraint.matches(node.target) else ()
            spoken += [(node.target, tensor) for tensor in found]
        elif not node.is_leaf:
            names = [*node.operands, *(tensor.name for tensor in node.outputs)]
            indices = _spoken_of(constraint, node, graph, active)
            spoken += [(node.path, graph.tensors[names[i]]) for i in indices]
    if spoken:
        name, most = max(spoken, key=lambda pair: len(pair[1].shape))
        _refuse_missing(constraint, name, most)


def _refuse_dims(constraint: Constraint, name: str, tensors: Iterable[Tensor]) -> None:
    """Raise `ConstraintError` if none of the tensors has the dim that is pinned or preferred."""
    if constraint.kind != "forbid":
        _refuse_missing(constraint, name, max(tensors, key=lambda tensor: len(tensor.shape)))


def _refuse_missing(constraint: Constraint, name: str, most: Tensor) -> None:
    """Raise `ConstraintError` if all types of the constraint split dims that this tensor lacks."""
    tokens = {token for alternative in constraint.allowed for token in alternative}
    types = [None if token in ("S", *PLACES) else parse_type(token) for token in sorted(tokens)]
    dims = [kind.dim for kind in types if isinstance(kind, S)]
    if len(dims) == len(types) and min(dims) >= len(most.shape) and not constraint.optional:
        raise ConstraintError(
            f"{name} has no dim {min(dims)}, which the constraint ({constraint.line}) names: its "
            f"shape is {list(most.shape)}. Its last dim is {len(most.shape) - 1}; dims count "
            "from 0."
        )


def _refuse_without_place(constraint: Constraint, name: str, dims: Iterable[S | None]) -> None:
    """Raise `ConstraintError` if a split of samples or positions is pinned on tensors without them."""
    tokens = {token for alternative in constraint.allowed for token in alternative}
    if constraint.kind == "pin" and tokens == {constraint.place} and not any(dims):
        dim, parts = (
            ("batch", "samples") if constraint.place == BATCH else ("sequence", "positions")
        )
        raise ConstraintError(
            f"{name} has no {dim} dim, which the constraint ({constraint.line}) names: it is not "
            f"made of the batch's inputs, or mixes its {parts}. Allow more types there."
        )


def _is_about_parameters(constraint: Constraint) -> bool:
    """Return whether the constraint is on parameters at rest or as leaves.

    A parameter's bare name means its leaf; ``*`` for tensors means activations only.
    """
    return constraint.subject in ("stored", "leaf") or (
        constraint.subject == "tensor" and constraint.pattern != "*"
    )


def _place(constraint: Constraint) -> Forms[Storage]:
    if constraint.subject == "stored":
        return lambda storage: ((storage.stored, None),)
    return lambda storage: ((storage.leaf, None),)


def _operands(indices: tuple[int, ...], dims: tuple[S | None, ...]) -> Forms[OpSharding]:
    return lambda option: tuple(((*option.inputs, *option.outputs)[i], dims[i]) for i in indices)


def _active(graph: Graph) -> frozenset[str]:
    """Return the tensors that constraints on activations apply to: not those that no plan splits."""
    busy = worth_splitting(graph)
    return frozenset(
        tensor.name
        for node in graph.nodes
        for tensor in node.outputs
        if tensor.differentiable or node.name in busy
    )


def _spoken_of(
    constraint: Constraint, node: Node, graph: Graph, active: frozenset[str]
) -> tuple[int, ...]:
    """Return the positions among the node's operands and outputs that a constraint applies to."""
    if constraint.subject in ("stored", "leaf"):
        return ()
    if constraint.subject == "used":
        return tuple(
            i
            for i, name in enumerate(node.operands)
            if graph.producer[name].op == "parameter"
            and constraint.matches(graph.producer[name].target)
        )
    operands = [
        name in active
        and graph.producer[name].op != "parameter"
        and constraint.matches(graph.producer[name].path)
        for name in node.operands
    ]
    outputs = [t.name in active and constraint.matches(node.path) for t in node.outputs]
    return tuple(i for i, spoken in enumerate((*operands, *outputs)) if spoken)


def _refuse_unmatched(graph: Graph, constraints: tuple[Constraint, ...]) -> None:
    for constraint in constraints:
        if not applies(constraint, graph):
            for other, name in graph.aliases:
                if constraint.matches(other):
                    raise ConstraintError(
                        f"The constraint ({constraint.line}) names {other}, which the model ties "
                        f"to {name}: they are one parameter. Write it for {name}."
                    )
            near = ", ".join(
                name
                for names in _nameable(constraint, graph)
                for name in get_close_matches(constraint.pattern, dict.fromkeys(names), NEAR, 0.0)
            )
            raise ConstraintError(
                f"No name matches the constraint ({constraint.line}). Names look like {near}. A "
                "pattern matches a whole name: * in front of it stands for any beginning."
            )


def _nameable(constraint: Constraint, graph: Graph) -> tuple[list[str], list[str]]:
    """Return the names that a constraint may match: parameters, and operators if it is on tensors."""
    operators = [node.path for node in graph.nodes if not node.is_leaf]
    parameters = [node.target for node in graph.leaves("parameter")]
    return parameters, operators if constraint.subject == "tensor" else []
