"""Sequential tree-reweighted message passing: a lower bound for pairwise costs.

Messages move costs between variables and the pairs they are in; the sum of all minima, which no
assignment undercuts whatever the messages are, never falls (Kolmogorov 2006; in the form of
Kolmogorov 2015, SRMP).  The pass also reads off an assignment, one variable after the other.
"""

from __future__ import annotations

import numpy as np

from autopar.solver.anytime.tables import Index, Tables
from autopar.solver.anytime.timed_problem import Array
from autopar.utils.compiled import compiled


@compiled
def send(t: Tables, pair: int, from_left: bool, given: Array, messages: Array) -> None:
    """Replace the message of a pair into its other side by the least of table plus what is given."""
    rows, columns = t.size[t.left[pair]], t.size[t.right[pair]]
    at, place = t.table_at[pair], t.message_at[pair]
    if from_left:
        out = messages[place + rows : place + rows + columns]
        out[:] = np.inf
        for row in range(rows):
            base = given[row]
            line = t.table[at + row * columns : at + (row + 1) * columns]
            for column in range(columns):
                value = line[column] + base
                if value < out[column]:
                    out[column] = value
    else:
        for row in range(rows):
            line = t.table[at + row * columns : at + (row + 1) * columns]
            least = np.inf
            for column in range(columns):
                value = line[column] + given[column]
                if value < least:
                    least = value
            messages[place + row] = least


@compiled
def sweep(t: Tables, priced: Array, messages: Array, forward: bool, states: Index) -> float:
    """Pass over all variables in one direction; return the bound, and set the assignment read off.

    At each variable all messages are gathered, and an equal share is sent to each pair ahead.  What
    stays with the variables is the bound, as then each pair's least cost is zero.
    """
    count = len(t.size)
    widest = 0
    for i in range(count):
        widest = max(widest, t.size[i])
    belief, given, score = np.empty(widest), np.empty(widest), np.empty(widest)
    bound = 0.0
    for step in range(count):
        i = step if forward else count - 1 - step
        k, f = t.size[i], t.first[i]
        for s in range(k):
            belief[s] = priced[f + s]
            score[s] = priced[f + s]
        ahead, behind = 0, 0
        for link in range(t.link_at[i], t.link_at[i + 1]):
            pair, j = t.link_pair[link], t.link_other[link]
            on_left = t.left[pair] == i
            place = t.message_at[pair] if on_left else t.message_at[pair] + t.size[j]
            for s in range(k):
                belief[s] += messages[place + s]
            if (j > i) == forward:
                ahead += 1
                for s in range(k):
                    score[s] += messages[place + s]
            else:
                behind += 1
                at = t.table_at[pair]
                if on_left:
                    for s in range(k):
                        score[s] += t.table[at + s * t.size[j] + states[j]]
                else:
                    for s in range(k):
                        score[s] += t.table[at + states[j] * k + s]
        least, chosen = belief[0], 0
        for s in range(1, k):
            least = min(least, belief[s])
            if score[s] < score[chosen]:
                chosen = s
        states[i] = chosen
        most = max(ahead, behind)
        share = 1.0 / most if most > 0 else 0.0
        bound += (1.0 - ahead * share) * least
        for link in range(t.link_at[i], t.link_at[i + 1]):
            pair, j = t.link_pair[link], t.link_other[link]
            if (j > i) != forward:
                continue
            on_left = t.left[pair] == i
            place = t.message_at[pair] if on_left else t.message_at[pair] + t.size[j]
            for s in range(k):
                messages[place + s] -= share * belief[s]
                given[s] = -messages[place + s]
            send(t, pair, on_left, given, messages)
    return bound
