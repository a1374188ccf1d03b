"""Fixtures that every test shares: a pool of gloo workers, and golden files."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.pool import Pool

# Nothing that an earlier run found out, or that lies in the user's cache, is seen; workers inherit it.
os.environ["AUTOPAR_CACHE"] = tempfile.mkdtemp(prefix="autopar_cache_")
# Every day the same examples for everybody; the slow run searches on.  A busy machine is no failure.
settings.register_profile("everyday", derandomize=True, deadline=None)
settings.register_profile("long", deadline=None)
GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files anew")


def pytest_configure(config: pytest.Config) -> None:
    everyday = config.getoption("markexpr") in ("not slow", "not long")
    settings.load_profile("everyday" if everyday else "long")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is slow is long, too, unless it is no more than thorough: that makes it slow."""
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker("long")
        elif item.get_closest_marker("thorough"):
            item.add_marker("slow")


def pytest_unconfigure() -> None:
    shutil.rmtree(os.environ["AUTOPAR_CACHE"], ignore_errors=True)


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """Long-lived gloo workers."""
    workers = Pool()
    yield workers
    workers.stop()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """``golden(name, text)``: the text equals the file ``tests/golden/name``."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.exists(), (
            f"{path} is missing: run pytest --update-golden and read what it wrote"
        )
        assert text == path.read_text(), (
            f"{path} differs: run pytest --update-golden and read the diff"
        )

    return check
