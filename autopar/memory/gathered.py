"""What is gathered again for the backward, in places of operators.

The first operator of the backward that asks for one of a block's weights brings all of them; each stays
until the last of those that saved it has run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from autopar.memory.lifetimes import Lifetimes
from autopar.memory.messages import made_by
from autopar.memory.recompute_set import Form


@dataclass(frozen=True)
class Gathered:
    """Bytes by place: while its operator runs, once it has run, and of messages before it."""

    _there: Counter[int]
    _still: Counter[int]
    _messages: Counter[int]

    @classmethod
    def of(cls, lives: Lifetimes) -> Gathered:
        """Of what a plan gathers again."""
        there, still, messages = Counter[int](), Counter[int](), Counter[int]()
        asked = _asked(lives)
        for collective in lives.collectives:
            chosen = [form for form in map(made_by, collective.conversions) if form in asked]
            if not chosen:
                continue
            brought = max(asked[form][-1] for form in chosen)
            messages[brought] = max(messages[brought], collective.forward_nbytes)
            for form in chosen:
                first = asked[form][0]
                there.update(dict.fromkeys(range(first, brought + 1), lives.nbytes(form)))
                still.update(dict.fromkeys(range(first + 1, brought + 1), lives.nbytes(form)))
        return cls(there, still, messages)

    def arriving(self, place: int) -> int:
        """While what an operator asks for is gathered."""
        return self._there[place] + self._messages[place]

    def nbytes(self, place: int) -> int:
        """While it goes back."""
        return self._there[place]

    def still(self, place: int) -> int:
        """Once it has gone back."""
        return self._still[place]

    def before(self, place: int) -> int:
        """Before anything that it asks for is gathered."""
        return self._still[place + 1]


def _asked(lives: Lifetimes) -> Mapping[Form, list[int]]:
    """By what is gathered again: the places of the operators that saved it."""
    found: defaultdict[Form, list[int]] = defaultdict(list)
    for place, node in enumerate(lives.graph.nodes):
        if node.name not in lives.keeps.again.node_names:
            for storage in lives.keeps.saved_by([node]) & lives.regathered:
                found[storage].append(place)
    return found
