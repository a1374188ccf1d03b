"""What a rank publishes of the error that ends it."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from autopar.runtime import agreement, launch
from autopar.runtime.failure_watchdog import _Watch
from autopar.runtime.launch import Launch
from autopar.runtime.peers import Peer, _machine, _stat
from autopar.runtime.watcher import Watcher, say
from tests.pool import Pool

LOST = RuntimeError("[gloo] Connection closed by peer [10.0.0.1]:5")


def watcher(cause: dict[str, Any] | None, first: dict[str, Any] | None) -> Any:
    """Rank 2 of a launch in which `first` was published before, and `cause` is known."""
    return SimpleNamespace(
        launch=SimpleNamespace(rank=2),
        failing=False,
        cause=lambda seconds: cause,
        publish=lambda found: first or found,
    )


@pytest.mark.parametrize(
    ("error", "cause", "said"),
    [
        (ValueError("on purpose"), None, "rank 2 failed first: ValueError: on purpose"),
        (LOST, None, "rank 2 failed first: it was the first to lose its connection"),
        (LOST, {"rank": 1, "message": "killed"}, "rank 1 failed first: killed"),
    ],
)
def test_a_lost_connection_is_another_ranks_failure(
    error: Exception, cause: Any, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    here = watcher(cause, None)
    sent: list[dict[str, Any]] = []
    here.publish = lambda found: sent.append(found) or found
    _Watch._publish(here, error)
    say(sent[0])
    assert f"autopar: {said}" in capsys.readouterr().err
    assert here.failing


def test_the_first_failure_is_told_to_who_fails_later() -> None:
    earlier = {"rank": 0, "message": "earlier"}
    assert _Watch._publish(watcher(None, earlier), ValueError("later")) == earlier
    assert _Watch._publish(watcher(None, None), ValueError("first")) is None


def _process() -> tuple[subprocess.Popen[bytes], Peer]:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    return child, Peer(child.pid, _stat(child.pid)[1], _machine(), "here")


def test_a_killed_process_is_named_before_the_threads_see_it() -> None:
    """Of two that have ended, the first; one that runs, and one that left, are not to blame."""
    children = [_process() for _ in range(4)]
    peers = dict(enumerate(peer for _, peer in children))
    here: Any = SimpleNamespace(
        peers=peers, calls=SimpleNamespace(count=3), connection=lambda: None, rank=4
    )
    watcher = Watcher(here, 0.0, lambda _: None)
    watcher.left = {0: 3}
    try:
        assert watcher.cause(0.2) is None
        for rank in (0, 2):
            children[rank][0].kill()
            children[rank][0].wait()
        found = watcher.cause(10.0)
        assert found is not None and found["rank"] == 2
        assert found["message"].startswith(f"process {children[2][0].pid} on here ended without")
    finally:
        for child, _ in children:
            child.kill()
            child.wait()


def _peers_at_once() -> tuple[int, dict[int, int]]:
    agreement.assert_same_on_all_ranks("nothing", "")
    here: Launch = launch.current()
    return Peer.here().pid, {rank: peer.pid for rank, peer in here.peers.items()}


def test_peers_are_known_behind_the_first_comparison(pool: Pool) -> None:
    """A rank may be killed in its first step: the others know its process by then."""
    found = pool.run(3, _peers_at_once)
    pids = dict(enumerate(pid for pid, _ in found))
    for rank, (_, peers) in enumerate(found):
        assert peers == {other: pid for other, pid in pids.items() if other != rank}
