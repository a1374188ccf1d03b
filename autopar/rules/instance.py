"""A rule bound to one node: factor sizes, and the shard of each tensor that a factor's split implies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from autopar.errors import RuleError
from autopar.ir.graph import Node, Tensor
from autopar.ir.placement import S
from autopar.rules.text import Dim, Rule, Term

Source = Literal["declared", "user", "discovered", "none"]
"""Origin of a rule: declared by autopar, by the user, discovered by experiment, or no rule."""


@dataclass(frozen=True)
class Instance:
    """The allowed splits of one operator on given shapes.

    `linear` lists sets of operands in which the operator is jointly linear.  `variants` maps a factor
    to the local implementation that its shards need to be correct.  `least` is the minimum local size
    of a split dim.  `pairs` maps a local implementation to two factors that it splits on one axis; no
    tensor has both.  `joined` are sets of factors that are split at once at one position, by name.
    """

    rule: Rule
    sizes: Mapping[str, int]
    linear: tuple[frozenset[int], ...] = ()
    variants: Mapping[str, str] = field(default_factory=dict)
    least: int = 1
    source: Source = "declared"
    pairs: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    joined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def declared(self) -> bool:
        """Whether the rule is autopar's own."""
        return self.source == "declared"

    @property
    def shardable(self) -> tuple[str, ...]:
        """Factors that may be split, in the rule's order."""
        every = (
            f for term in (*self.rule.inputs, *self.rule.outputs) for d in term.dims for f in d
        )
        return tuple(
            f for f in dict.fromkeys(every) if f not in self.rule.whole and self.sizes[f] > 1
        )

    def divides(self, factor: str, parts: int) -> bool:
        """Whether a factor, or each that is split at once with it, has a multiple of `parts` entries."""
        return all(self.sizes[each] % parts == 0 for each in self.joined.get(factor, (factor,)))

    def shard(self, term: Term, factor: str, position: int) -> S | None:
        """Return a tensor's shard if `factor` is split within `position` blocks; None without it."""
        for dim, factors in enumerate(term.dims):
            for each in self.joined.get(factor, (factor,)):
                if each in factors:
                    before = factors[: factors.index(each)]
                    return S(dim, math.prod(self.sizes[f] for f in before) * position)
        return None

    def factor_at(self, term: Term, shard: S) -> tuple[str, int] | None:
        """Return the factor that a tensor's shard splits, and the position in it; None without one."""
        if shard.dim >= len(term.dims):
            return None
        before = 1
        for factor in term.dims[shard.dim]:
            size = self.sizes[factor]
            if shard.of % before == 0 and shard.of < before * size:
                return factor, shard.of // before
            before *= size
        return None


def bind(
    rule: Rule,
    node: Node,
    operands: tuple[Tensor, ...],
    given: Mapping[str, int],
) -> dict[str, int]:
    """Return the sizes of all factors; raise `RuleError` if the shapes do not fit the rule."""
    sizes = dict(given)
    terms = (*rule.inputs, *rule.outputs)
    tensors = (*operands, *node.outputs)
    for _ in range(2):
        for term, tensor in zip(terms, tensors, strict=True):
            if len(term.dims) != len(tensor.shape):
                raise _misfit(rule, node, tensors)
            for dim, size in zip(term.dims, tensor.shape, strict=True):
                _bind_dim(dim, size, sizes)
    for term, tensor in zip(terms, tensors, strict=True):
        for dim, size in zip(term.dims, tensor.shape, strict=True):
            if math.prod(sizes.get(f, 0) for f in dim) != size:
                raise _misfit(rule, node, tensors)
    return sizes


def _bind_dim(dim: Dim, size: int, sizes: dict[str, int]) -> None:
    unknown = [factor for factor in dim if factor not in sizes]
    if len(unknown) == 1:
        known = math.prod(sizes[factor] for factor in dim if factor in sizes)
        sizes[unknown[0]] = size // known if known else 0


def _misfit(rule: Rule, node: Node, tensors: tuple[Tensor, ...]) -> RuleError:
    shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors)
    return RuleError(
        f"{node.path}: the rule of {node.op}, {rule}, does not fit the shapes {shapes}. "
        "Declare the operator's rule for these shapes: autopar.rule(...)."
    )
