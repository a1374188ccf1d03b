"""Collectives: how ranks convert a tensor from one type to another on a mesh axis, one record each.

A record describes one direction: the backward of a conversion is the conversion of the gradient, by any
collective that can.  ``COLLECTIVES.add("mine", Collective(...))`` adds yours (docs/extending.md).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from autopar.ir.placement import Type, letter_of
from autopar.utils.identifiers import FUNCTIONS, WORDS, is_identifier
from autopar.utils.registry import Registry
from cost_models.exchanges import EXCHANGES, Exchange

Local = Literal["slice", "fill"]
"""Local copy of a conversion that sends nothing: a slice, or zeros around to the larger shape."""


@dataclass(frozen=True)
class Collective:
    """One way to convert.

    converts    types before and after, as in ``S -> R | I | N``
    sends       (nbytes, ranks) -> the exchanges of `cost_models/exchanges.py` of which it consists,
                each with the bytes of its larger tensor on one rank.  `nbytes` are those of the larger
                local tensor of the conversion.  None: nothing is sent
    run         (x, axis, source, target) -> the converted tensor, by functions of
                `autopar.runtime.kernels`.  A shard `S` has its `dim` and the number `of` blocks in it.
                None: autopar's own, in `autopar/runtime/convert.py`
    exchange    facts of an exchange that no other collective uses; `sends` calls it by the
                collective's name
    copies      the local copy of one that sends nothing
    """

    converts: str
    sends: Callable[[int, int], Sequence[tuple[str, int]]] | None = None
    run: Callable[..., Any] | None = None
    exchange: Exchange | None = None
    copies: Local | None = None

    @cached_property
    def pairs(self) -> frozenset[tuple[str, str]]:
        """The conversions, as letters of the types before and after."""
        before, _, after = self.converts.partition("->")
        return frozenset(itertools.product(_letters(before), _letters(after)))

    def sent(self, nbytes: int, ranks: int) -> Sequence[tuple[str, int]]:
        """Return what each rank sends."""
        return () if self.sends is None else self.sends(nbytes, ranks)


class Collectives(Registry[Collective]):
    """The collectives by the names that emitted code calls."""

    def fault(self, name: str, value: Collective) -> str:
        """Return why a collective cannot be planned with or emitted, or ""."""
        return _fault(name, value)

    def add(self, name: str, value: Collective) -> Collective:
        """Add a collective, which plans use wherever it is cheaper than autopar's.

        Raises `InputError` if it cannot be planned with or emitted.
        """
        super().add(name, value)
        if value.exchange is not None:
            EXCHANGES[name] = value.exchange
        return value


def _letters(text: str) -> list[str]:
    return [letter.strip() for letter in text.split("|")]


def _sending(exchange: str) -> Callable[[int, int], Sequence[tuple[str, int]]]:
    return lambda nbytes, ranks: ((exchange, nbytes),)


_OWN = {
    "all_gather": Collective("S -> R | I | N", _sending("all_gather")),
    "reduce_scatter": Collective("P -> S", _sending("reduce_scatter")),
    "all_reduce": Collective("P -> R | I | N", _sending("all_reduce")),
    "all_to_all": Collective("S -> S", _sending("all_to_all")),
    "shard": Collective("R | I | N -> S", copies="slice"),
    "partial": Collective("R | I | N | S -> P", copies="fill"),
    "replicate": Collective("I -> R"),
    "invariant": Collective("R -> I"),
}
COLLECTIVES = Collectives("collective", _OWN)
_TRIED_NBYTES = 4096
"""Bytes with which an added collective is tried."""
_TAKEN = frozenset({*FUNCTIONS, *WORDS, *EXCHANGES} - _OWN.keys())
OWN_OF = {pair: name for name, each in _OWN.items() for pair in each.pairs}
"""Autopar's collective for each conversion, by the letters of the types."""


def own(source: Type, target: Type) -> str:
    """Return the name of autopar's collective for a conversion; "" if there is no such conversion."""
    return OWN_OF.get((letter_of(source), letter_of(target)), "")


def added(source: Type, target: Type) -> Iterator[str]:
    """Yield the names of added collectives for a conversion."""
    pair = letter_of(source), letter_of(target)
    return (name for name, each in COLLECTIVES.items() if name not in _OWN and pair in each.pairs)


def exchanged() -> list[str]:
    """Return the kinds of exchange that collectives consist of."""
    kinds = (kind for each in COLLECTIVES.values() for kind, _ in each.sent(1024, 2))
    return list(dict.fromkeys(kinds))


def _fault(name: str, value: Collective) -> str:
    """Return why a collective cannot be added, or ""."""
    if not is_identifier(name) or name in _TAKEN:
        return "needs another name: an identifier that emitted code does not use for something else"
    sending = {pair for pair, known in OWN_OF.items() if _OWN[known].sends}
    if not value.pairs <= sending:
        there = ", ".join(sorted(map(" -> ".join, sending)))
        return f"converts {value.converts}, but conversions that send anything are {there}"
    if value.run is None or value.sends is None:
        return "needs `sends` and `run`"
    return _fault_of_sent(name, value)


def _fault_of_sent(name: str, value: Collective) -> str:
    """Return what is wrong with the exchanges that it sends, or ""."""
    form = "`sends` has to return a list of (exchange, bytes) for (bytes, ranks)"
    try:
        sent = list(value.sent(_TRIED_NBYTES, 2))
        strange = {str(kind) for kind, _ in sent}
    except (TypeError, ValueError) as error:
        return f"cannot be priced: {form}, and fails: {error}"
    if not sent or not all(isinstance(nbytes, int) and nbytes > 0 for _, nbytes in sent):
        return f"cannot be priced: {form}, as positive whole numbers, not {sent}"
    strange -= {*EXCHANGES, *([name] if value.exchange else [])}
    return f"sends {min(strange)!r}, which has no facts: give its `exchange`" if strange else ""
