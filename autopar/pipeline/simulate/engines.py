"""When every action starts and ends, and every transfer; two engines, one answer.

`in_order` takes actions in an order known beforehand.  That is exact where each link has one sender:
transfers then queue in the order of the sender's list.  `by_events` always takes the next event of a
clock, as is needed where workers share links; it takes twice the time.
"""

from __future__ import annotations

import heapq

from autopar.pipeline.simulate.program import Program, TransferCost

Times = tuple[list[float], list[float], list["Sent"]]
"""Starts and ends of a program's actions in its order, and its transfers."""
Sent = tuple[int, int, int, float, float]
"""A transfer: the action that produced it, the one that awaits it, lane, start, arrival."""


def one_sender_each(program: Program, ways: list[TransferCost]) -> bool:
    """Whether no two workers compete for a link, and none takes several at once."""
    senders: dict[int, int] = {}
    for lane, way in zip(program.lanes, ways, strict=True):
        if len(way.links) > 1:
            return False
        for link in way.links:
            if senders.setdefault(link, lane.sender) != lane.sender:
                return False
    return True


def in_order(program: Program, seconds: list[float], ways: list[TransferCost], links: int) -> Times:
    """One pass over the actions."""
    size = len(program.graph.actions)
    arrived = [0.0] * size
    starts = [0.0] * size
    ends = [0.0] * size
    free = [0.0] * (len(program.graph.first) - 1)
    busy = [0.0] * (links + 1)
    lanes = [(way.links[0] if way.links else links, way.occupied, way.latency) for way in ways]
    worker, number, sends = program.graph.worker, program.seconds, program.sends
    sent: list[Sent] = []
    for action in program.graph.order:
        mine = worker[action]
        start = arrived[action]
        if free[mine] > start:
            start = free[mine]
        starts[action] = start
        free[mine] = ends[action] = end = start + seconds[number[action]]
        for user, lane in sends[action]:
            link, occupied, latency = lanes[lane]
            begin = end
            if link < links:
                if busy[link] > begin:
                    begin = busy[link]
                busy[link] = begin + occupied
            arrival = begin + occupied + latency
            if arrival > arrived[user]:
                arrived[user] = arrival
            sent.append((action, user, lane, begin, arrival))
    return starts, ends, sent


def by_events(
    program: Program, seconds: list[float], ways: list[TransferCost], links: int
) -> Times:
    """A heap of the actions that run; of events at one time the lowest worker comes first."""
    graph = program.graph
    size = len(graph.actions)
    arrived, starts, ends = [0.0] * size, [0.0] * size, [0.0] * size
    awaited = [0] * size
    for users in program.sends:
        for user, _ in users:
            awaited[user] += 1
    workers = len(graph.first) - 1
    at, idle, free = list(graph.first[:-1]), [True] * workers, [0.0] * workers
    busy = [0.0] * links
    sent: list[Sent] = []
    heap: list[tuple[float, int]] = []

    def begin(mine: int) -> None:
        action = at[mine]
        if idle[mine] and action < graph.first[mine + 1] and not awaited[action]:
            starts[action] = start = max(free[mine], arrived[action])
            ends[action] = end = start + seconds[program.seconds[action]]
            idle[mine] = False
            heapq.heappush(heap, (end, mine))

    for mine in range(workers):
        begin(mine)
    while heap:
        now, mine = heapq.heappop(heap)
        done = at[mine]
        at[mine] += 1
        idle[mine], free[mine] = True, now
        for user, lane in program.sends[done]:
            way = ways[lane]
            start = max([now, *(busy[link] for link in way.links)])
            for link in way.links:
                busy[link] = start + way.occupied
            arrival = start + way.occupied + way.latency
            arrived[user] = max(arrived[user], arrival)
            sent.append((done, user, lane, start, arrival))
            awaited[user] -= 1
            begin(graph.worker[user])
        begin(mine)
    return starts, ends, sent
