"""Output of commands: the console, and files written atomically."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.file_proxy import FileProxy
from rich.progress import track

from autopar.cli.heartbeat import counted, reporting
from autopar.errors import InputError
from autopar.render.text.table import WIDTH
from autopar.utils.cache import write

T = TypeVar("T")


class Uncropped(Console):
    """A console that prints lines wider than the terminal uncropped."""

    def print(self, *objects: Any, **how: Any) -> None:
        """Print as rich does, without cropping."""
        super().print(*objects, **({"crop": False} | how))


def console(stderr: bool = False) -> Console:
    """Return a console as wide as the terminal; for a file or pipe, at least as wide as tables are."""
    made = Uncropped(stderr=stderr, highlight=False)
    if not made.is_terminal:
        made.width = max(made.width, WIDTH)
    return made


def watched(every: Iterable[T], total: int | None, what: str) -> Iterator[T]:
    """Yield the items unchanged, with progress on standard error: a bar on a terminal, else lines."""
    out = console(stderr=True)
    if not out.is_terminal:
        yield from counted(every, total, what)
        return
    yield from track(every, what, total, console=out, transient=True, disable=_is_still(out))


@contextmanager
def working(what: str) -> Iterator[None]:
    """Within the context, show the task on standard error: a spinner on a terminal, else lines.

    On a terminal nested tasks are not shown, because two animations would overwrite each other.
    """
    out = console(stderr=True)
    if not out.is_terminal:
        with reporting(what):
            yield
        return
    if _is_still(out):
        yield
        return
    with out.status(f"{what} ..."):
        yield


def _is_still(out: Console) -> bool:
    """Whether no animation may start on this terminal, because rich already runs one."""
    return isinstance(sys.stderr, FileProxy)


def save(text: str, path: Path) -> Path:
    """Write a file atomically."""
    with _explained(path):
        return write(text, path)


def writable(*paths: Path | None, reads: Iterable[Path] = (), makes: bool = False) -> None:
    """Raise in advance the errors that `save` would raise after the work, as far as they are known.

    A path is a file, or a folder in which files are saved; `reads` are the command's input files.  The
    parent folder must exist, unless the command `makes` it.
    """
    spare(reads, filter(None, paths))
    for path in filter(None, paths):
        with _explained(path):
            if not makes:
                _refuse_no_folder(path)
            if path.is_file() or path.is_dir() or not path.exists():
                above = path.absolute().parents
                folder = path if path.is_dir() else next(each for each in above if each.exists())
                tempfile.TemporaryFile(dir=folder).close()


def _refuse_no_folder(path: Path) -> None:
    """Raise if the folder does not exist: creating it would hide a typo in the path."""
    if not path.parent.exists() and not path.exists():
        raise InputError(
            f"Cannot write {path}: there is no folder {path.parent}. Make it, or correct the path."
        )


def spare(reads: Iterable[Path], paths: Iterable[Path]) -> None:
    """Raise if writing one of the paths would overwrite a file that the command reads."""
    inputs = tuple(reads)
    for path in paths:
        for read in inputs:
            if _is_same(path, read):
                raise InputError(
                    f"Writing {path} would overwrite {read}, which this command reads: name another "
                    "file to write."
                )


def _is_same(one: Path, other: Path) -> bool:
    """Whether both are one file; terminals and pipes do not count, as they can be read and written."""
    if one.is_file() and other.is_file():
        return one.samefile(other)
    return not one.exists() and one.resolve() == other.resolve()


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (FileExistsError, NotADirectoryError):
        raise InputError(f"Cannot write {path}: {path.parent} is not a folder.") from None
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror or error}.") from None
