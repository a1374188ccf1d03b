"""More processes that improve assignments while the first one raises the bound.

Each round, every helper gets the prices and the best assignment, makes a fixed number of moves from it,
and answers with its own.  Answers are taken in the order of the helpers, so that equal seeds give equal
answers, however fast each process is.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection

from autopar.errors import AutoparError
from autopar.solver.anytime.search import Search
from autopar.solver.anytime.tables import Index, Tables
from autopar.solver.anytime.timed_problem import Array
from autopar.utils.forks import threads_allowed


class Helpers:
    """Processes that share the tables of one problem; none, where `count` is zero."""

    def __init__(self, tables: Tables, seed: int, count: int) -> None:
        """Start them; the operating system shares the memory of the tables."""
        context = multiprocessing.get_context("fork")
        self._pipes: list[Connection] = []
        self._processes = []
        for number in range(count):
            mine, theirs = context.Pipe()
            args = (theirs, tables, seed + 1 + number, [*self._pipes, mine])
            process = context.Process(target=_serve, args=args, daemon=True)
            with threads_allowed():
                process.start()
            theirs.close()
            self._pipes.append(mine)
            self._processes.append(process)

    def give(self, prices: Array, states: Index | None, moves: int) -> None:
        """Have each helper make moves from an assignment."""
        with _ended():
            for pipe in self._pipes:
                pipe.send((prices, states, moves))

    def answers(self) -> list[Index]:
        """Wait for all helpers; return the assignments that they found."""
        with _ended():
            found = [pipe.recv() for pipe in self._pipes]
        return [states for states in found if states is not None]

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.terminate()
            process.join()


@contextmanager
def _ended() -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError):
        raise AutoparError(
            "A process that searches has ended, perhaps for want of memory. Take fewer processes."
        ) from None


def _serve(pipe: Connection, tables: Tables, seed: int, inherited: Sequence[Connection]) -> None:
    """Answer each task until the pipe is closed, also by the end of the first process.

    `inherited` are the first process' ends of pipes: while they are open here, none is closed.
    """
    for each in inherited:
        each.close()
    search = Search(tables, seed)
    while True:
        try:
            prices, states, moves = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        if states is not None:
            search.offer(states)
        search.improve(prices, moves)
        pipe.send(search.states)
