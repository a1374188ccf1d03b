"""Memory of weights that are gathered again in the backward, by operator position.

The first operator in the backward that needs a weight of a block triggers the gather of all weights in
its collective.  Each is freed after the backward of the last operator that saved it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from autopar.memory.lifetimes import Lifetimes
from autopar.memory.messages import made_by
from autopar.memory.recompute_set import Form


@dataclass(frozen=True)
class Gathered:
    """Bytes by position: during its operator's backward, after it, and of messages before it."""

    _there: Counter[int]
    _still: Counter[int]
    _messages: Counter[int]

    @classmethod
    def of(cls, lives: Lifetimes) -> Gathered:
        """Compute them for the regathered conversions of a plan."""
        there, still, messages = Counter[int](), Counter[int](), Counter[int]()
        asked = _asked(lives)
        for function, collective in lives.early.items():
            # A block's backward starts the gather of the block before it, which is an equal one.
            begin, end = lives.functions.begins[function], lives.functions.ends[function]
            is_rerun = lives.graph.nodes[begin].name in lives.keeps.again.node_names
            forms = [f for f in map(made_by, collective.conversions) if is_rerun or f in asked]
            places = range(begin, end + 1 if is_rerun else _brought(forms, asked) + 1)
            nbytes = sum(map(lives.nbytes, forms))
            there.update(dict.fromkeys(places, nbytes))
            still.update(dict.fromkeys(places, nbytes))
        for collective in lives.collectives:
            chosen = [form for form in map(made_by, collective.conversions) if form in asked]
            if not chosen:
                continue
            brought = _brought(chosen, asked)
            messages[brought] = max(messages[brought], collective.forward_nbytes)
            for form in chosen:
                first = asked[form][0]
                there.update(dict.fromkeys(range(first, brought + 1), lives.nbytes(form)))
                still.update(dict.fromkeys(range(first + 1, brought + 1), lives.nbytes(form)))
        return cls(there, still, messages)

    def arriving(self, place: int) -> int:
        """Return the bytes while the operator's weights are being gathered."""
        return self._there[place] + self._messages[place]

    def nbytes(self, place: int) -> int:
        """Return the bytes while the operator's backward runs."""
        return self._there[place]

    def still(self, place: int) -> int:
        """Return the bytes after the operator's backward."""
        return self._still[place]

    def before(self, place: int) -> int:
        """Return the bytes before any of the operator's weights are gathered."""
        return self._still[place + 1]


def _brought(forms: Iterable[Form], asked: Mapping[Form, list[int]]) -> int:
    """Return the position in whose backward the first of these forms is gathered again."""
    return max((asked[form][-1] for form in forms), default=-1)


def _asked(lives: Lifetimes) -> Mapping[Form, list[int]]:
    """Return, for every regathered form, the positions of the operators that saved it."""
    found: defaultdict[Form, list[int]] = defaultdict(list)
    for place, node in enumerate(lives.graph.nodes):
        if node.name not in lives.keeps.again.node_names:
            for storage in lives.keeps.saved_by([node]) & lives.regathered:
                found[storage].append(place)
    return found
