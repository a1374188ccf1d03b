"""Every code block of the README and of the documentation runs: see `blocks`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.daily import daily
from tests.docs.blocks import ROOT, blocks
from tests.docs.runner import Runner

PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md"))]
LONG = [
    page for page in PAGES if any(block.slow for block in blocks((ROOT / page).read_text(), page))
]
"""All of the others runs in `test_everyday`."""
STARTED = ("README.md", "docs/profile.md")
TEACHING = tuple(
    f"docs/{name}.md" for name in ("cookbook", "guide", "limits", "profile", "tutorial")
)
"""Pages with most code behind the README; they run in the slow set alone."""


@pytest.mark.thorough
@pytest.mark.parametrize("page", daily(PAGES, [page for page in PAGES if page not in TEACHING]))
def test_everyday(page: str, page_folder: Path, forked: Mapping[str, str]) -> None:
    Runner(page_folder, True, forked).run(blocks((ROOT / page).read_text(), page))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", LONG)
def test_all_of_it(
    page: str, page_folder: Path, real: Mapping[str, str], forked: Mapping[str, str]
) -> None:
    """These pages start each command as their reader does; starting all would take ten minutes."""
    environment = real if page in STARTED else forked
    Runner(page_folder, False, environment).run(blocks((ROOT / page).read_text(), page))


@pytest.mark.parametrize("page", PAGES)
def test_files_that_it_names_exist(page: str) -> None:
    """`autopar/solver/rows.py`, `solver/rows.py`, `tests/fuzz`: paths are real."""
    text = (ROOT / page).read_text()
    top = "autopar|benchmarks|cost_models|docs|examples|solve|tests"
    for name in re.findall(rf"`((?:{top})/[\w/.-]+)`", text):
        assert (ROOT / name).exists() or (ROOT / "autopar" / name).exists(), f"{page}: {name}"
