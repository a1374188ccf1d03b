"""User-declared rules, which are proved by experiment before they are used in a plan."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from autopar.errors import RuleError
from autopar.ir.graph import Node, Ref, Tensor
from autopar.ops.functions import name_of
from autopar.ops.operators import callable_of
from autopar.rules import _torch
from autopar.rules.declare import Call, Declared, declaration, forget, instance, otherwise
from autopar.rules.discover.find import benches
from autopar.rules.discover.laboratory import Bench, Declined, refuse, sheltered
from autopar.rules.discover.sizes import Shapes, affordable, families
from autopar.rules.discover.trial import Refuted, conduct, pairs, partials, splits
from autopar.rules.example import made_on
from autopar.rules.text import parse_rule


@dataclass(frozen=True)
class UserRule:
    """A user's rule for an operator, and the call patterns for which it is proved."""

    op: str
    declared: Declared
    proved: dict[object, int] = field(default_factory=dict, compare=False)
    """Number of trials, by small shapes and arguments."""

    def __str__(self) -> str:
        return f"autopar.rule({self.op!r}, {self.declared.text!r})"


_RULES: dict[str, UserRule] = {}


def rule(
    op: str | type,
    text: str,
    *,
    linear: Iterable[Iterable[int]] = (),
    sizes: Mapping[str, int] | None = None,
    least: int = 1,
    shapes: Sequence[Sequence[int]] | None = None,
) -> None:
    """Declare how an operator splits, as an einsum over named factors.

        autopar.rule("mine::linear", "b* i, o i -> b* o", linear=[{0}, {1}])

    `op` is ``namespace::name``, or ``namespace::name.overload`` for one overload, or a class of
    `torch.autograd.Function`.  A factor may be
    split over devices in every tensor that has it; an output without it is then a sum over devices.
    ``h!`` must stay whole, ``(p! h)`` is a dim of p blocks of h, ``+`` marks an operand that is added
    outside the product.  `linear` lists sets of operands (by position among the tensors) in which the
    operator is jointly linear, so that sums over devices pass through.  `sizes` gives factors that no
    shape tells; `least` is the fewest entries that a split dim may have left on a device.

    The rule is proved when it is first used, on small tensors of the call's form, or at once on
    `shapes` of float tensors.  Raises `RuleError` where the text is malformed, the operator has a rule
    of autopar's own, or an experiment shows the rule to be wrong.
    """
    name = _of_class(op, shapes) if isinstance(op, type) else _internal(op)
    op = op if isinstance(op, str) else name.replace(".", "::")
    parsed = parse_rule(text)
    if _overloads(name):
        _refuse_other_operands(op, name, len(parsed.inputs))
    if declaration(f"{name}.default" if name.count(".") < 2 else name) is not None:
        raise RuleError(f"{op} has a rule of autopar's own; `autopar rules {op}` shows it.")
    declared = Declared(text, tuple(map(frozenset, linear)), dict(sizes or {}), least=least)
    made = UserRule(op, declared)
    if shapes is not None:
        _prove_on(made, name, tuple(map(tuple, shapes)))
    _RULES[name] = made
    forget()


def user_rules() -> tuple[UserRule, ...]:
    """Return all rules declared in this process."""
    return tuple(_RULES.values())


@otherwise("user")
def declared_by_user(call: Call) -> Declared | None:
    """Return the user's rule for a call, proved for calls of its structure; None without one."""
    op = call.node.op
    found = _RULES.get(op) or _RULES.get(".".join(op.split(".")[:2]))
    if found is None:
        return None
    prove(found, call.node, call.operands)
    return found.declared


def prove(rule: UserRule, node: Node, operands: tuple[Tensor, ...]) -> int:
    """Prove a rule on small tensors like the call's; return the number of trials.

    Raises `RuleError` if a trial fails.
    """
    shapes = tuple(tensor.shape for tensor in operands)
    tried = (*families(shapes, node), *(((shapes,),) if affordable(shapes) else ()))
    flags = tuple((t.dtype, t.differentiable) for t in operands)
    key = (tried, flags, repr(node.args), repr(node.kwargs))
    if key not in rule.proved:
        # If small shapes do not fit the rule, the call's own shapes may.
        instance(rule.declared, node, operands)
        rule.proved[key] = _proved(rule, node, operands, tried)
    return rule.proved[key]


def _proved(
    rule: UserRule, node: Node, operands: tuple[Tensor, ...], tried: tuple[tuple[Shapes, ...], ...]
) -> int:
    reason = "its operands are too large to try"
    for family in tried:
        try:
            refuse(node, operands)
            with sheltered():
                held = benches(node, operands, (family,))
                done = sum(_stands(rule, bench) for bench in held)
        except (Declined, _Misfit) as why:
            reason = str(why)
            continue
        except Refuted as refuted:
            raise RuleError(f"{rule} is wrong: {refuted}.") from None
        if done:
            return done
        reason = "no factor of it divides by two or three"
    raise RuleError(f"{rule} cannot be proved: {reason}. Leave the operator without a rule.")


class _Misfit(Exception):
    """The rule does not fit small shapes."""


def _stands(rule: UserRule, bench: Bench) -> int:
    """Try every statement of a rule on one bench; return the number of trials."""
    try:
        found = instance(rule.declared, bench.node, bench.operands)
    except RuleError as error:
        raise _Misfit(str(error)) from None
    done = sum(conduct(splits(factor, found, bench), bench) for factor in found.shardable)
    done += sum(conduct(partials(group, found, bench), bench) for group in found.linear)
    return done + conduct(pairs(found, bench), bench)


def _prove_on(rule: UserRule, name: str, shapes: Shapes) -> None:
    """Prove a rule on float tensors of the given shapes, passed as the operator's first arguments."""
    op = name if name.count(".") == 2 else f"{name}.{(_overloads(name) or ('default',))[0]}"
    operands = tuple(Tensor(f"x{i}", shape, "float64", True) for i, shape in enumerate(shapes))
    node = Node("made", op, tuple(Ref(tensor.name) for tensor in operands))
    prove(rule, made_on(node, operands), operands)


def _of_class(op: type, shapes: object) -> str:
    """Return the name that an autograd function's class gets when it is captured."""
    if not issubclass(op, torch.autograd.Function):
        raise RuleError(
            f"{op.__name__} is not a torch.autograd.Function; name an operator instead."
        )
    if shapes is not None:
        raise RuleError(
            f"The rule of {op.__name__} is proved when a model applies it: leave out shapes=."
        )
    return name_of(op)


def _internal(op: str) -> str:
    """Return ``mine.linear`` for ``mine::linear``; raise `RuleError` for anything else."""
    namespace, colons, rest = op.partition("::")
    if not (namespace and colons and rest) or rest.count(".") > 1:
        raise RuleError(f"Cannot read the operator {op!r}: write 'namespace::name'.")
    if not _overloads(f"{namespace}.{rest}"):
        raise RuleError(
            f"There is no operator {op!r} here: import the module that registers it before its rule."
        )
    return f"{namespace}.{rest}"


def _refuse_other_operands(op: str, name: str, count: int) -> None:
    """Raise `RuleError` unless some overload of the operator takes so many tensors."""
    named = name.split(".")[2:] or _overloads(name)
    ranges = [_tensors_of(".".join([*name.split(".")[:2], each])) for each in named]
    if not any(least <= count <= most for least, most in ranges):
        least, most = ranges[0]
        takes = f"{least}" if least == most else f"{least} to {most:g}"
        raise RuleError(
            f"The rule of {op} has {count} operands; the operator takes {takes} tensors. Write a term "
            "for each of them before '->'."
        )


def _tensors_of(op: str) -> tuple[int, float]:
    """Return the least and the largest number of tensors that an overload takes."""
    arguments = callable_of(op)._schema.arguments  # type: ignore[attr-defined]
    kinds = [str(argument.type) for argument in arguments if not argument.is_out]
    if any("List" in kind and "Tensor" in kind for kind in kinds):
        return 0, math.inf
    required = sum(kind == "Tensor" for kind in kinds)
    return required, required + sum(kind == "Optional[Tensor]" for kind in kinds)


def _overloads(name: str) -> tuple[str, ...]:
    return _torch.overloads(*name.split(".")[:2])
