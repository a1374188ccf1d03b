"""The rule language: an einsum over named factors.

    linear      b* i, o i, + o -> b* o
    split       b* (p! h) -> b* h, b* h, b* h

Terms are separated by commas; ``->`` stands between operands and outputs.  A dim is one factor, or
several merged row-major in parentheses, or ``1`` (broadcast); ``()`` is a scalar.  ``b*`` stands
for all remaining leading dims of the tensor.  ``h!`` must not be split.  ``+`` marks an operand
that is added outside the product.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from autopar.errors import RuleError

Dim = tuple[str, ...]
"""The factors of one dim, outermost first; empty for a broadcast dim of size one."""

_TOKEN = re.compile(r"\(([^()]*)\)|(\S+)")
_FACTOR = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Term:
    """One operand or output."""

    dims: tuple[Dim, ...]
    added: bool = False

    @property
    def factors(self) -> frozenset[str]:
        """All factors of the term."""
        return frozenset(factor for dim in self.dims for factor in dim)


@dataclass(frozen=True, slots=True)
class Rule:
    """A parsed rule; `str` gives its text with normalised spaces."""

    inputs: tuple[Term, ...]
    outputs: tuple[Term, ...]
    whole: frozenset[str]

    def __str__(self) -> str:
        sides = (", ".join(map(self._term, side)) for side in (self.inputs, self.outputs))
        return " -> ".join(sides)

    def _term(self, term: Term) -> str:
        words = ["+"] if term.added else []
        if not term.dims:
            return " ".join([*words, "()"])
        for dim in term.dims:
            marked = [f"{f}!" if f in self.whole else f for f in dim]
            words.append(marked[0] if len(dim) == 1 else f"({' '.join(marked)})" if dim else "1")
        return " ".join(words)

    @property
    def summed(self) -> frozenset[str]:
        """Factors that occur in operands and in no output."""
        read = {f for term in self.inputs for f in term.factors}
        made = {f for term in self.outputs for f in term.factors}
        return frozenset(read - made)


def parse_rule(text: str) -> Rule:
    """Parse a rule; raise `RuleError` if it is malformed."""
    sides = text.split("->")
    if len(sides) != 2:
        raise RuleError(f"The rule {text!r} needs exactly one '->'.")
    whole: set[str] = set()
    inputs = tuple(_terms(sides[0], whole, text)) if sides[0].strip() else ()
    outputs = tuple(_terms(sides[1], whole, text))
    return Rule(inputs, outputs, frozenset(whole))


def _terms(side: str, whole: set[str], text: str) -> list[Term]:
    """Parse one side into comma-separated terms; an empty term is a scalar."""
    return [_term(word, whole, text) for word in side.split(",")]


def _term(word: str, whole: set[str], text: str) -> Term:
    stripped = word.strip()
    added = stripped.startswith("+")
    dims: list[Dim] = []
    for group, single in _TOKEN.findall(stripped.removeprefix("+")):
        if not (group or single):
            return Term((), added)
        names = group.split() if group else [single]
        if names == ["1"]:
            dims.append(())
            continue
        dims.append(tuple(_factor(name, whole, text) for name in names))
    return Term(tuple(dims), added)


def _factor(name: str, whole: set[str], text: str) -> str:
    bare = name.removesuffix("!")
    if not _FACTOR.fullmatch(bare.removesuffix("*")):
        raise RuleError(f"The rule {text!r} has a factor that cannot be read: {name!r}.")
    if name.endswith("!"):
        whole.add(bare)
    return bare


def expand(rule: Rule, ranks: tuple[tuple[int, ...], tuple[int, ...]]) -> Rule:
    """Replace ``b*`` by factors b0, b1, ... to match the tensors' numbers of dims (`ranks`)."""
    counts: dict[str, int] = {}
    for term, rank in zip((*rule.inputs, *rule.outputs), (*ranks[0], *ranks[1]), strict=True):
        starred = [d[0] for d in term.dims if len(d) == 1 and d[0].endswith("*")]
        if starred:
            count = rank - (len(term.dims) - 1)
            if len(starred) > 1 or counts.setdefault(starred[0], count) != count or count < 0:
                raise RuleError(f"The rule {rule} does not fit tensors of {ranks} dims.")

    def spread(term: Term) -> Term:
        dims: list[Dim] = []
        for dim in term.dims:
            if len(dim) == 1 and dim[0].endswith("*"):
                stem = dim[0].removesuffix("*")
                dims.extend((f"{stem}{i}",) for i in range(counts[dim[0]]))
            else:
                dims.append(dim)
        return Term(tuple(dims), term.added)

    whole = {f for f in rule.whole if not f.endswith("*")}
    for starred_name, count in counts.items():
        if starred_name in rule.whole:
            whole |= {f"{starred_name.removesuffix('*')}{i}" for i in range(count)}
    return Rule(tuple(map(spread, rule.inputs)), tuple(map(spread, rule.outputs)), frozenset(whole))
