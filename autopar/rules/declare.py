"""The registry of sharding rules: one declaration per operator, as text or a function returning text.

`rule_of` looks a node's rule up here and binds it to the node's shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

from autopar.errors import RuleError
from autopar.ir.graph import Arg, Graph, Node, Ref, Tensor, short
from autopar.rules.instance import Instance, Source, bind
from autopar.rules.text import Rule, Term, expand, parse_rule


@dataclass(frozen=True)
class Declared:
    """The rule declared for one node: text, linear operand sets, sizes, variants, pairs.

    `least` is the minimum local size of a split dim.  `joined` are sets of factors that an axis may
    split at once, by names that `variants` has: the first is the one whose positions are taken.
    `autopar.rules.instance` explains the others.
    """

    text: str
    linear: tuple[frozenset[int], ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    variants: Mapping[str, str] = field(default_factory=dict)
    least: int = 1
    pairs: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    joined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Call:
    """A node with its operand tensors: the argument of a declaration."""

    node: Node
    operands: tuple[Tensor, ...]

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Global shapes of the operands."""
        return tuple(tensor.shape for tensor in self.operands)

    @property
    def made(self) -> tuple[tuple[int, ...], ...]:
        """Global shapes of the outputs."""
        return tuple(tensor.shape for tensor in self.node.outputs)

    def arg(self, place: int, key: str, default: Arg = None) -> Arg:
        """Return an argument by position or keyword."""
        if place < len(self.node.args):
            return self.node.args[place]
        return dict(self.node.kwargs).get(key, default)

    def is_tensor(self, place: int, key: str = "") -> bool:
        """Return whether an argument is a tensor."""
        return isinstance(self.arg(place, key), Ref)


Declare = Callable[[Call], Declared | None]
_REGISTER: dict[str, Declare] = {}
_OTHERWISE: dict[Source, Declare] = {}


def rule(*ops: str) -> Callable[[Declare], Declare]:
    """Register a declaration for operators, by name without overload (``linear``) or with it."""

    def register(declare: Declare) -> Declare:
        for op in ops:
            if op in _REGISTER:
                raise RuleError(f"The operator {op!r} has two rules.")
            _REGISTER[op] = declare
        return declare

    return register


def fixed(text: str, *ops: str, linear: tuple[tuple[int, ...], ...] = ()) -> None:
    """Register a fixed text for operators whose rule does not depend on their arguments."""
    declared = Declared(text, tuple(frozenset(group) for group in linear))

    def declare(call: Call) -> Declared:
        return declared

    declare.__doc__ = text
    rule(*ops)(declare)


def otherwise(source: Source) -> Callable[[Declare], Declare]:
    """Register a fallback source for operators without a declaration: user rules, or discovery."""

    def register(declare: Declare) -> Declare:
        _OTHERWISE[source] = declare
        return declare

    return register


def declaration(op: str) -> Declare | None:
    """Return an operator's registered declaration, by its name with overload or else without."""
    name = short(op)
    overload = op.split(".")[2:]
    return _REGISTER.get(".".join([name, *overload])) or _REGISTER.get(name)


def forget() -> None:
    """Clear the cache of rules; call it after a fallback source gains rules."""
    _instance.cache_clear()


def registered() -> tuple[str, ...]:
    """Return the names of all operators with a registered rule, sorted."""
    return tuple(sorted(_REGISTER))


def rule_of(node: Node, graph: Graph) -> Instance:
    """Return the node's rule bound to its shapes; without a rule, one that allows no split."""
    operands = tuple(graph.tensors[name] for name in node.operands)
    return _instance(_Key(_content(node, operands), node, operands))


@dataclass(frozen=True)
class _Key:
    """Cache key that is equal for nodes that differ in names only, and hence have equal rules."""

    content: tuple[object, ...]
    node: Node = field(compare=False)
    operands: tuple[Tensor, ...] = field(compare=False)


def _content(node: Node, operands: tuple[Tensor, ...]) -> tuple[object, ...]:
    order = {name: place for place, name in enumerate(dict.fromkeys(node.operands))}
    return (
        node.op,
        _numbered(node.args, order),
        tuple((key, _numbered(value, order)) for key, value in node.kwargs),
        tuple((t.shape, t.dtype, t.differentiable) for t in operands),
        tuple((t.shape, t.differentiable) for t in node.outputs),
    )


def _numbered(arg: Arg, order: Mapping[str, int]) -> object:
    if isinstance(arg, Ref):
        return f"<{order[arg.name]}>"
    if isinstance(arg, tuple):
        return tuple(_numbered(item, order) for item in arg)
    return repr(arg)


@cache
def _instance(key: _Key) -> Instance:
    if key.node.is_leaf:
        return _whole(key)
    call = Call(key.node, key.operands)
    order: tuple[Source, ...] = ("declared", "user", "discovered")
    asked = {"declared": declaration(key.node.op), **_OTHERWISE}
    for source in order:
        declare = asked.get(source)
        declared = declare(call) if declare is not None else None
        if declared is not None:
            return instance(declared, key.node, key.operands, source)
    return _whole(key)


def instance(
    declared: Declared, node: Node, operands: tuple[Tensor, ...], source: Source = "declared"
) -> Instance:
    """Bind a declaration to a node's shapes; raise `RuleError` if it does not fit them."""
    ranks = (
        tuple(len(t.shape) for t in operands),
        tuple(len(t.shape) for t in node.outputs),
    )
    parsed = parse_rule(declared.text)
    if len(parsed.inputs) != len(ranks[0]) or len(parsed.outputs) != len(ranks[1]):
        raise RuleError(
            f"{node.path}: the rule of {node.op}, {parsed}, is for {len(parsed.inputs)} operands and "
            f"{len(parsed.outputs)} outputs; this call has {len(ranks[0])} and {len(ranks[1])}."
        )
    expanded = expand(parsed, ranks)
    sizes = bind(expanded, node, operands, declared.sizes)
    return Instance(
        expanded,
        sizes,
        declared.linear,
        declared.variants,
        declared.least,
        source,
        declared.pairs,
        declared.joined,
    )


def _whole(key: _Key) -> Instance:
    """Return a rule in which every dim is a factor of its own and none may be split."""
    sizes: dict[str, int] = {}
    terms = []
    for number, tensor in enumerate((*key.operands, *key.node.outputs)):
        dims = []
        for dim, size in enumerate(tensor.shape):
            name = f"t{number}_{dim}"
            sizes[name] = size
            dims.append((name,))
        terms.append(Term(tuple(dims)))
    count = len(key.operands)
    bare = Rule(tuple(terms[:count]), tuple(terms[count:]), frozenset(sizes))
    return Instance(bare, sizes, source="none")
