"""The store of this launch, with a key prefix that no other attempt, group or job shares.

Launchers keep one store for all attempts, and number attempts differently on each node.  Groups that are
destroyed and made again find the old keys, too.  So rank 0 draws a name for every group, and sends it to
each rank that greets it with a random token; an answer to an earlier greeting is ignored.  This is the
only file that touches the store of the default group.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.util import Finalize
from typing import Any

import torch.distributed as dist

from autopar.errors import RankFailedError
from autopar.runtime import _torch, limits
from autopar.runtime.calls import Calls
from autopar.runtime.peers import Peer

HELLO, WELCOME, HOSTED = "autopar/hello", "autopar/welcome", "autopar/hosted"
TABLE, ERASED = "table", "erased"
OURS = "autopar/"
"""Prefix of our own keys; all others in the default group's store are torch's."""
EAGER_S, QUICK_S, SLOW_S = 5.0, 0.02, 0.25
"""Rank 0 polls for others every `QUICK_S` seconds in the first `EAGER_S`, then every `SLOW_S`."""
BY_S = 2.0
"""Seconds that a process which never called autopar waits at its end to report that it has ended."""


class Launch:
    """One default group: its store, under a unique name.

    A group that is destroyed and made again in one process may find the old store: the serving process
    keeps it as long as anything refers to an old group, and a launcher always does.  So the addresses in
    it are deleted with the group, and the serving process keeps it until the others have seen that.
    """

    def __init__(self, raw: Any, name: str) -> None:
        self.raw, self.name = weakref.ref(raw), name
        self._serving: Any = raw.underlying_store if isinstance(raw, _torch.PrefixStore) else None
        self.dies_with_first_rank = _is_served(raw) and not from_launcher()
        """Whether rank 0 hosts the store, rather than a launcher or a file."""
        self._served = raw.clone()
        self.rank, self.size, self.pid = dist.get_rank(), dist.get_world_size(), os.getpid()
        self.store = self.connection()
        if self.size > 1:
            addresses = weakref.finalize(
                raw, _erase_addresses, self._served, name, self.rank, self.pid
            )
            addresses.atexit = False  # the group ends with the process
        self.calls = Calls()
        self.peers: dict[int, Peer] = {}
        """The processes of the other ranks; known once all ranks have compared something."""
        self.read: list[str] = []
        """Keys that can be deleted once all ranks have reached the next comparison."""
        self.meetings = 0
        self.loops: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        """Records of the training loop, by the number of comparisons before a model was made."""

    def connection(self) -> Any:
        """Return a connection to the store for one more thread: a blocked call blocks its connection."""
        return _own(self._served.clone(), self.name)

    def meet_peers(self, store: Any) -> None:
        """Read the processes of the other ranks from the store, once they are in it."""
        if not self.peers and self.size > 1 and store.check([TABLE]):
            table = json.loads(store.get(TABLE).decode())
            found = {rank: Peer(**peer) for rank, peer in enumerate(table)}
            del found[self.rank]
            self.peers = found

    def let_go(self) -> None:
        """Release the store, as this launch is not read any more."""
        self._serving = None

    def meeting(self) -> int:
        """Return the number of the next comparison of all ranks."""
        self.meetings += 1
        return self.meetings

    @property
    def is_over(self) -> bool:
        """Whether the group was destroyed, or this is a fork."""
        return self.pid != os.getpid() or not _is_of_now(self.raw())


class _Host:
    """Rank 0's thread that sends the name of the launch to each rank when it greets."""

    def __init__(self, raw: Any, name: str, size: int) -> None:
        self._name, self._size, self._over = name, size, threading.Event()
        self._raw = raw.clone()
        self._store = _own(self._raw, name)
        self._thread = threading.Thread(target=self._serve, daemon=True, name="autopar-host")

    def start(self) -> None:
        self._raw.set(HOSTED, "")
        self._thread.start()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def stop(self) -> None:
        self._over.set()
        self._thread.join(10.0)

    def _serve(self) -> None:
        began = time.monotonic()
        here: dict[int, Any] = {0: Peer.here().as_dict()}
        with suppress(Exception):  # the store's host has ended
            while len(here) < self._size:
                for rank in set(range(self._size)) - here.keys():
                    self._answer(rank, here)
                eager = time.monotonic() - began < EAGER_S
                if self._over.wait(QUICK_S if eager else SLOW_S):
                    return
            self._store.set(TABLE, json.dumps([here[rank] for rank in sorted(here)]))
            self._raw.delete_key(HOSTED)

    def _answer(self, rank: int, here: dict[int, Any]) -> None:
        hello, welcome = f"{HELLO}/{rank}", f"{WELCOME}/{rank}"
        if self._store.check([f"here/{rank}"]):
            here[rank] = json.loads(self._store.get(f"here/{rank}").decode())
            self._store.delete_key(f"here/{rank}")
            self._raw.delete_key(hello)
            self._raw.delete_key(welcome)
        elif self._raw.check([hello]):
            self._raw.set(welcome, f"{self._raw.get(hello).decode()} {self._name}")


_now: Launch | None = None
_hosts: list[_Host] = []
_ends: set[tuple[int, Callable[[], None]]] = set()
_lock = threading.Lock()


def alone() -> bool:
    """Whether there are no other ranks to agree with: world size 1, or a fake group."""
    return dist.get_world_size() == 1 or dist.get_backend() == "fake"


def from_launcher() -> bool:
    """Whether torchrun hosts the store."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def current() -> Launch:
    """Return the launch of the default group; the first call for a group waits for rank 0's."""
    global _now
    with _lock:
        raw = _torch.store()
        if _now is None or _now.raw() is not raw or _now.pid != os.getpid():
            _now = _begin(raw)
        return _now


def known() -> Launch | None:
    """Return the launch of the default group, if it has begun."""
    return _now if _now is not None and not _now.is_over else None


def forget(launch: Launch) -> None:
    """Forget a launch whose group was destroyed: the store's port may be needed again."""
    global _now
    launch.let_go()
    if _now is launch:
        _now = None
        _stop_hosts()


def write_table() -> None:
    """On rank 0, once all ranks have joined: wait until the table of their processes is written."""
    for host in _hosts:
        host.join(BY_S)


def at_end(function: Callable[[], None]) -> None:
    """Call `function` when this process ends; children of multiprocessing do not run atexit hooks."""
    key = (os.getpid(), function)
    if key not in _ends:
        _ends.add(key)
        atexit.register(function)
        Finalize(None, function, exitpriority=100)


def reachable() -> bool:
    """At the end of a process that never called autopar: whether another rank waits for it there."""
    if not dist.is_initialized() or alone():
        return False
    raw, rank = _torch.store(), dist.get_rank()
    if rank != 0:
        return bool(raw.check([HOSTED]))
    return any(raw.check([f"{HELLO}/{other}"]) for other in range(1, dist.get_world_size()))


def say_goodbye(leave: Callable[[Launch], None]) -> None:
    """Join the launch only to report that this process ends."""
    raw = _torch.store()
    launch = _begin(raw, BY_S)
    leave(launch)
    write_table()


def _begin(raw: Any, patience_s: float | None = None) -> Launch:
    name = name_for(raw, dist.get_rank(), dist.get_world_size(), patience_s)
    return Launch(raw, name)


def fresh(raw: Any, rank: int, size: int) -> Any:
    """Return the store for a new default group, without addresses of an earlier attempt."""
    return _own(raw, name_for(raw, rank, size))


def name_for(raw: Any, rank: int, size: int, patience_s: float | None = None) -> str:
    """Return the name that rank 0 draws, the same on all ranks of this launch."""
    if rank == 0:
        name = uuid.uuid4().hex
        if size > 1:
            _hosts.append(_Host(raw, name, size))
            _hosts[-1].start()
            at_end(_stop_hosts)
        return name
    with _in_a_store_that_may_end():
        raw.check([HOSTED])  # a new connection to none would be tried for minutes
        connection, word = raw.clone(), uuid.uuid4().hex
        connection.set(f"{HELLO}/{rank}", word)
        patience = limits.timeout_s() if patience_s is None else patience_s
        name = _welcomed(connection, f"{WELCOME}/{rank}", word, patience)
        _own(connection, name).set(f"here/{rank}", json.dumps(Peer.here().as_dict()))
    return name


@contextmanager
def _in_a_store_that_may_end() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise RankFailedError(
            "The store of the ranks has ended: the process that keeps it (usually rank 0) ended "
            "before this rank called autopar. Call autopar.parallelize on every rank."
        ) from error


def _welcomed(connection: Any, key: str, word: str, patience_s: float) -> str:
    """Return the name of the launch from the answer to this greeting; raise after `patience_s`."""
    began = time.monotonic()
    while (waited := time.monotonic() - began) < patience_s:
        if connection.check([key]):
            greeted, _, name = connection.get(key).decode().partition(" ")
            if greeted == word:
                return str(name)
        time.sleep(min(SLOW_S, 0.001 + waited / 10))
    raise RankFailedError(
        f"Rank 0 did not call autopar within {patience_s:g} s. Is autopar.parallelize called on "
        "some ranks only? Call it on every rank. AUTOPAR_TIMEOUT_S says how long ranks wait."
    )


def _erase_addresses(served: Any, name: str, rank: int, pid: int) -> None:
    """On rank 0 delete the keys of destroyed groups; others wait briefly so as not to read them."""
    if pid != os.getpid():
        return
    with suppress(Exception):  # the store's host has ended
        store = served.clone()
        mine = _own(store, name)
        if rank == 0:
            _delete_all_but_ours(store)
            mine.set(ERASED, "")
        until = time.monotonic() + BY_S
        while not mine.check([ERASED]) and time.monotonic() < until:
            time.sleep(0.001)


def _delete_all_but_ours(store: Any) -> None:
    with suppress(RuntimeError):  # a store that cannot list its keys
        for key in store.list_keys():
            if not key.startswith(OURS):
                store.delete_key(key)


def _is_served(store: Any) -> bool:
    """Whether a process hosts the store over TCP."""
    while isinstance(store, _torch.PrefixStore):
        store = store.underlying_store
    return isinstance(store, _torch.TCPStore)


def _own(store: Any, name: str) -> Any:
    return _torch.PrefixStore(f"{OURS}{name}", store)


def _stop_hosts() -> None:
    while _hosts:
        _hosts.pop().stop()


def _is_of_now(raw: Any) -> bool:
    try:
        return dist.is_initialized() and _torch.store() is raw
    except (ValueError, RuntimeError, KeyError):  # it is being destroyed
        return False
