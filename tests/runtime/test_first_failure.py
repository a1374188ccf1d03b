"""What a rank publishes of the error that ends it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from autopar.runtime.failure_watchdog import _Watch
from autopar.runtime.watcher import say

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
