"""What is said of the rank that failed first."""

from __future__ import annotations

import pytest

from autopar.runtime.faults import _say


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("ValueError: broken on purpose", "rank 2 failed first: ValueError: broken on purpose"),
        (
            "RuntimeError: [gloo] Connection closed by peer [10.0.0.1]:5",
            "rank 2 was the first to lose its connection to another rank, which ended without a",
        ),
    ],
)
def test_a_lost_connection_is_another_ranks_failure(
    message: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _say({"rank": 2, "message": message})
    assert f"autopar: {said}" in capsys.readouterr().err
