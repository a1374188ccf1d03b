"""The site builds without a warning, and what commands write into the documentation is current."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.blocks import ROOT

SITE = ROOT / "docs" / "site"


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_site_{name}", SITE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    # Never --quiet: then mkdocs does not count its warnings either, and --strict lets all pass.
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "-f",
        str(config),
        "-d",
        str(site),
    ]
    return subprocess.run(
        command,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.mark.slow
def test_it_builds(tmp_path: Path) -> None:
    """Links, anchors and the names of the reference are right: mkdocs would warn."""
    done = build(SITE / "mkdocs.yml", tmp_path / "site")
    assert done.returncode == 0, done.stderr[-3000:]
    pages = {path.name for path in (tmp_path / "site").glob("*.html")} - {"404.html"}
    assert pages == {f"{path.stem}.html" for path in ROOT.glob("docs/*.md")}
    for page in pages:
        text = (tmp_path / "site" / page).read_text()
        assert not re.search(r'(?:src|<link[^>]* href)="https?:', text), f"{page} needs the network"
    assert (tmp_path / "site" / "site" / "pages.css").is_file()
    index = (tmp_path / "site" / "index.html").read_text()
    assert 'href="site/pages.css"' in index
    # Opened from a folder, a page may fetch nothing: the index of the search has to be a script.
    assert "memory" in (tmp_path / "site" / "search" / "search_index.js").read_text()
    assert 'src="site/iframe-worker.js"' in index
    assert (tmp_path / "site" / "site" / "iframe-worker.js").is_file()
    reference = (tmp_path / "site" / "reference.html").read_text()
    assert "Raises <code>InputError</code>" in reference


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("[a page](nowhere.md)", "'nowhere.md'"),
        pytest.param("[a part](index.md#nowhere)", "#nowhere", marks=pytest.mark.slow),
        pytest.param("::: autopar.nowhere", "autopar.nowhere", marks=pytest.mark.slow),
    ],
)
def test_what_is_wrong_fails(text: str, warning: str, tmp_path: Path) -> None:
    """The same configuration, with one page that is wrong."""
    (tmp_path / "site").mkdir()
    (tmp_path / "index.md").write_text(f"# Page\n\n{text}\n")
    settings = (SITE / "mkdocs.yml").read_text().replace("[../..]", f"[{ROOT}]")
    settings = re.sub(r"^nav:.*?^plugins:", "plugins:", settings, flags=re.DOTALL | re.MULTILINE)
    (tmp_path / "site" / "mkdocs.yml").write_text(settings)
    done = build(tmp_path / "site" / "mkdocs.yml", tmp_path.parent / f"{tmp_path.name}_out")
    assert done.returncode != 0 and warning in done.stderr, done.stderr


def test_the_command_line_is_current(request: pytest.FixtureRequest) -> None:
    path, made = ROOT / "docs" / "cli.md", loaded("cli").page()
    if request.config.getoption("--update-golden"):
        path.write_text(made)
    assert path.read_text() == made, "run python docs/site/cli.py docs/cli.md"


def test_pictures_are_current(request: pytest.FixtureRequest) -> None:
    pictures = loaded("pictures").PICTURES
    for picture in pictures:
        path, made = ROOT / "docs" / "pictures" / f"{picture.__name__}.svg", str(picture())
        if request.config.getoption("--update-golden"):
            path.write_text(made)
        assert path.read_text() == made, "run python docs/site/pictures.py docs/pictures"
    drawn = {f"{picture.__name__}.svg" for picture in pictures}
    assert drawn == {path.name for path in (ROOT / "docs" / "pictures").iterdir()}
