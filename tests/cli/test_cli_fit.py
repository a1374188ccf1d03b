"""`autopar fit`: the largest batch, in words and for programs."""

from __future__ import annotations

import json

import pytest

from tests.cli.commands import ok, run

MODEL = "tests.cli.factories:good"
ON = ("--mesh", "2", "--hardware", "h100", "--memory", "86KiB")


@pytest.mark.thorough
def test_the_largest_batch_is_named_with_the_next_that_fails() -> None:
    found = json.loads(ok("fit", MODEL, *ON, "--json"))
    batch = found["largest"]["batch"]
    fails = min(each["batch"] for each in found["tried"] if each["plan"] is None)
    said = " ".join(ok("fit", MODEL, *ON).split())
    assert f"a batch of {batch} fits; {fails} does not" in said
    assert "most samples per second" in said and "plans over batch and memory" in said


@pytest.mark.thorough
def test_where_nothing_fits_it_fails_and_says_so() -> None:
    result = run("fit", MODEL, "--mesh", "2", "--hardware", "h100", "--memory", "1KiB")
    assert result.exit_code == 1 and "No batch fits" in result.stdout


def test_no_limit_is_refused() -> None:
    result = run("fit", MODEL, "--mesh", "2", "--hardware", "h100", "--memory", "none")
    assert result.exit_code == 1 and "every batch fits" in result.stderr
