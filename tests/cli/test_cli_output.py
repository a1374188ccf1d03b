"""Where commands write: never over a file that they read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from autopar.cli.output import spare
from autopar.errors import InputError
from cost_models.hardware import load, to_text
from tests.cli.commands import fails, ok
from tests.render.text import hand_made

FACTORIES = Path("tests/cli/factories.py")
MODEL = "factories.py:good"
EXPLAINED = ("report", "plan.json", "--model", MODEL, "--explain", "up.weight")
PLANNED = ("plan", MODEL, "--mesh", "2")
MAPPED = ("map", MODEL, "--mesh", "2", "--batches", "8", "--memories", "1GiB")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The one that commands run in, with a file of every kind."""
    shutil.copy(FACTORIES, tmp_path)
    (tmp_path / "plan.json").write_text(hand_made.plan().to_json())
    (tmp_path / "h.toml").write_text(to_text(load("h100")))
    (tmp_path / "curve").mkdir()
    (tmp_path / "c.toml").write_text("[pin]\n")
    for name in ("hf.json", "times.sqlite", "run.json", "curve/a.json"):
        (tmp_path / name).write_text("mine")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "flag", "file"),
    [
        (("simulate", "plan.json"), "--trace", "plan.json"),
        (("simulate", "plan.json", "--hardware", "h.toml"), "--trace", "h.toml"),
        (("report", "plan.json"), "-o", "plan.json"),
        (("report", "plan.json", "--model", MODEL), "-o", "factories.py"),
        (("report", "plan.json", "--measured", "run.json"), "-o", "run.json"),
        ((*EXPLAINED, "--database", "times.sqlite"), "-o", "times.sqlite"),
        (("report", "plan.json", "--frontier", "curve"), "-o", "curve/a.json"),
        (PLANNED, "-o", "factories.py"),
        (("plan", "factories:good", "--mesh", "2"), "-o", "factories.py"),
        (("plan", "hf:hf.json", "--mesh", "2"), "-o", "hf.json"),
        ((*PLANNED, "--constraints", "c.toml"), "-o", "c.toml"),
        ((*PLANNED, "--hardware", "h.toml"), "-o", "h.toml"),
        ((*PLANNED, "--database", "times.sqlite"), "-o", "times.sqlite"),
        ((*PLANNED, "-o", "p.json"), "--problem", "factories.py"),
        (("profile", MODEL, "--mesh", "2"), "-o", "factories.py"),
        (("profile", MODEL, "--mesh", "2", "--database", "new.sqlite"), "-o", "new.sqlite"),
        (("calibrate", "--hardware", "h.toml"), "-o", "h.toml"),
    ],
)
def test_no_command_writes_over_what_it_reads(
    words: tuple[str, ...], flag: str, file: str, folder: Path
) -> None:
    before = Path(file).read_bytes() if Path(file).exists() else None
    said = fails(*words, flag, folder / file)
    assert f"would overwrite {file}, which this command reads: name another file" in said
    assert (Path(file).read_bytes() if Path(file).exists() else None) == before


def test_a_map_is_not_written_over_its_model(folder: Path) -> None:
    page = folder / "factories.py"
    page.write_text(
        f"{page.read_text()}\n# <!-- written by autopar map, anew each time -->\n"
        "# <!-- until here -->\n"
    )
    assert "would overwrite factories.py" in fails(*MAPPED, "-o", page)


def test_no_module_is_emitted_over_the_model(folder: Path) -> None:
    shutil.copy("factories.py", "MLP.py")
    asked = ("MLP.py:good", "--mesh", "2", "--hardware", "h100", "--preset", "ddp")
    ok("plan", *asked, "-o", "good.json")
    assert "would overwrite MLP.py" in fails("emit", "good.json", "MLP.py:good", "-o", ".")


def test_links_are_the_file_and_pipes_are_none(folder: Path) -> None:
    link = folder / "link.json"
    link.symlink_to("plan.json")
    with pytest.raises(InputError, match=r"overwrite plan\.json"):
        spare([Path("plan.json")], [link])
    spare([Path("/dev/null")], [Path("/dev/null")])
