"""Turns proposals into a rule of the factors that no small shape, draw or number of ranks refutes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, combinations

from autopar.errors import RuleError
from autopar.ir.graph import Node, Tensor
from autopar.rules.declare import Declared, instance
from autopar.rules.discover.laboratory import Bench
from autopar.rules.discover.places import Composed, Factor, compose, in_order
from autopar.rules.discover.propose import proposals
from autopar.rules.discover.trial import (
    Refuted,
    conduct,
    pairs,
    partials,
    single_entries,
    splits,
)
from autopar.rules.instance import Instance

MOST_PARTIAL = 4
"""Up to so many differentiable operands all sets are tried as partial sums; of more, one and all."""
MOST_RANKS = 12


@dataclass(frozen=True)
class Finding:
    """The result of experiments on a call: a rule, or the reason why there is none.

    `ran`: whether the operator ran at all; if not, it may run on other shapes.
    """

    text: str = ""
    linear: tuple[tuple[int, ...], ...] = ()
    sizes: tuple[tuple[str, int], ...] = ()
    least: int = 1
    reason: str = ""
    trials: int = 0
    ran: bool = True

    def on(self, node: Node, operands: tuple[Tensor, ...]) -> Declared | None:
        """Return a declaration for these shapes; None if there is no rule or it does not fit them.

        Whole factors in merged dims get their sizes from the shapes, or else from the experiment.
        """
        for sizes in ({}, dict(self.sizes)):
            declared = Declared(
                self.text, tuple(map(frozenset, self.linear)), sizes, least=self.least
            )
            try:
                if self.text and instance(declared, node, operands).shardable is not None:
                    return declared
            except RuleError:
                continue
        return None


class _Search:
    def __init__(self, benches: tuple[Bench, ...]) -> None:
        self._benches = benches
        self._first = benches[0]
        self._factors: tuple[Factor, ...] = ()
        self.trials = 0

    def finding(self) -> Finding:
        """Try whole dims, then parts of dims, then partial operands, then all claims in pairs."""
        for merged in (False, True):
            for factor in proposals(self._first, merged, lambda: self._factors):
                self._consider(factor)
        composed = self._composed(self._factors)
        assert composed is not None
        text = str(in_order(composed.rule))
        finding = Finding(text, sizes=tuple(sorted(composed.sizes.items())), least=2)
        linear = self._linear(finding)
        finding = Finding(finding.text, linear, finding.sizes, least=2)
        if not self._factors and not linear:
            return Finding(reason="no dim of it can be split", trials=self.trials)
        try:
            self.trials += conduct(
                pairs(self._instance(finding, self._first), self._first), self._first
            )
        except Refuted as refuted:
            return Finding(reason=f"its claims do not hold together: {refuted}", trials=self.trials)
        least = self._least(finding)
        return Finding(finding.text, linear, finding.sizes, least, trials=self.trials)

    def _composed(self, factors: tuple[Factor, ...]) -> Composed | None:
        return compose(factors, self._first.node, self._first.shapes)

    def _consider(self, factor: Factor) -> None:
        """Keep a factor if it nests with those before it and no trial refutes it."""
        factors = (*self._factors, factor)
        composed = self._composed(factors)
        if composed is None or len(factors) > 12:
            return
        finding = Finding(str(composed.rule), sizes=tuple(sorted(composed.sizes.items())))
        before = frozenset().union(*(f.added for f in self._factors))
        # An operand that is newly added is so for all summed factors, so these are tried again.
        again = [i for i, f in enumerate(factors) if f.is_summed] if factor.added - before else []
        try:
            for index in {*again, len(factors) - 1}:
                self._try(composed.letters[index], finding)
        except (Refuted, RuleError):
            return
        self._factors = factors

    def _try(self, letter: str, finding: Finding) -> None:
        done = 0
        for bench in self._benches:
            found = self._instance(finding, bench)
            done += conduct(splits(letter, found, bench), bench)
        self.trials += done
        if not done:
            raise Refuted("no trial was possible")

    def _linear(self, finding: Finding) -> tuple[tuple[int, ...], ...]:
        """Return the smallest sets of operands whose partial sums give partial sums of the outputs."""
        if not any(t.differentiable for t in self._first.node.outputs):
            return ()
        flows = [i for i, tensor in enumerate(self._first.operands) if tensor.differentiable]
        counts = range(1, len(flows) + 1) if len(flows) <= MOST_PARTIAL else (1, len(flows))
        found: list[tuple[int, ...]] = []
        for group in chain.from_iterable(combinations(flows, count) for count in counts):
            if any(set(smaller) <= set(group) for smaller in found):
                continue
            try:
                done = 0
                for bench in self._benches:
                    done += conduct(
                        partials(frozenset(group), self._instance(finding, bench), bench), bench
                    )
            except Refuted:
                continue
            self.trials += done
            if done:
                found.append(group)
        return tuple(found)

    def _least(self, finding: Finding) -> int:
        """Return the minimum local size of a split dim: 1 if single entries per rank pass, else 2."""
        try:
            for bench in self._benches[:1]:
                found = self._instance(finding, bench, least=1)
                for letter in found.shardable:
                    if found.sizes[letter] > MOST_RANKS:
                        return 2
                    self.trials += conduct(single_entries(letter, found, bench), bench)
        except Refuted:
            return 2
        return 1

    def _instance(self, finding: Finding, bench: Bench, least: int = 1) -> Instance:
        declared = finding.on(bench.node, bench.operands)
        if declared is None:
            raise Refuted("the rule does not fit other small shapes")
        return instance(declared, bench.node, bench.operands)


def settle(benches: tuple[Bench, ...]) -> Finding:
    """Return the rule that holds on all benches, which are one call on several small shapes."""
    return _Search(benches).finding()
