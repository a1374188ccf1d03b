"""Two engines that compute when every action and transfer starts and ends, with equal results.

`in_order` runs the actions in a topological order.  That is exact if each link has one sender, because
transfers then queue in the order of the sender's list.  `by_events` always runs the next event in
time, which is necessary if workers share links; it takes twice as long.
"""

from __future__ import annotations

import heapq

from autopar.pipeline.simulate.program import Program, TransferCost

Times = tuple[list[float], list[float], list["Sent"]]
"""Starts and ends of a program's actions, in their order, and its transfers."""
Sent = tuple[int, int, int, float, float]
"""A transfer: the action that produces it, the action that waits for it, lane, start, arrival."""


def one_sender_each(program: Program, ways: list[TransferCost]) -> bool:
    """Return whether every link has one sender, and every transfer uses at most one link."""
    senders: dict[int, int] = {}
    for lane, way in zip(program.lanes, ways, strict=True):
        if len(way.links) > 1:
            return False
        for link in way.links:
            if senders.setdefault(link, lane.sender) != lane.sender:
                return False
    return True


def in_order(program: Program, seconds: list[float], ways: list[TransferCost], links: int) -> Times:
    """Compute the times in one pass over the actions."""
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
    """Compute the times with a heap of running actions; ties are broken by the lowest worker."""
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
