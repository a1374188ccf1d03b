"""Database file of measured times: SQLite, for concurrent writers and atomic writes.

Times of different devices, software, or numbers of threads or ranks are stored separately and never
mixed.
"""

from __future__ import annotations

import math
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import astuple, fields
from pathlib import Path
from urllib.parse import quote

from cost_models.errors import CostModelError
from cost_models.measured.values import Call, Pass, Setting, Timed, Work

VERSION = 2
APPLICATION = 0x41757450
"""SQLite application id that identifies these files."""
PATIENCE_S = 60.0
"""Time that a writer waits for other writers."""
LONGEST = 2**24
"""Maximum bytes of one value."""
_PLACE = tuple(f.name for f in fields(Setting))
_TABLES = f"""
create table setting (id integer primary key, {", ".join(_PLACE)}, unique ({", ".join(_PLACE)}));
create table timed (
    setting integer not null references setting (id), text text not null, op text not null,
    family text not null, dtype text not null,
    flops real not null, nbytes real not null, forward_s real not null, forward_spread real not null,
    backward_flops real, backward_nbytes real, backward_s real, backward_spread real,
    "rows" integer not null, date text not null, primary key (setting, text));
"""


class Database:
    """A file of times by setting and call."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def settings(self) -> tuple[Setting, ...]:
        """Return all settings with stored times."""
        with self._open() as connection:
            rows = connection.execute(f"select {', '.join(_PLACE)} from setting order by id")
            every = [Setting(*row) for row in rows]
        for setting in every:
            memory = setting.memory_bytes
            if not (isinstance(memory, int | float) and 0 <= memory < math.inf):
                raise self._damaged(f"The memory of {setting.device!r} is {memory!r}.")
            for what in ("threads", "ranks", "cores"):
                count = getattr(setting, what)
                if not (isinstance(count, int) and count >= 0):
                    raise self._damaged(f"The {what} of {setting.device!r} are {count!r}.")
        return tuple(every)

    def read(self, setting: Setting) -> dict[str, Timed]:
        """Return the times of exactly this setting, by the call's text."""
        with self._open() as connection:
            rows = connection.execute(
                "select op, text, family, dtype, flops, nbytes, backward_flops, backward_nbytes, "
                'forward_s, forward_spread, backward_s, backward_spread, "rows", date from timed '
                f"where setting = (select id from setting where {_WHERE}) order by text",
                astuple(setting),
            )
            every = [_read(row) for row in rows]
        return {timed.call.text: self._checked(timed) for timed in every}

    def write(self, setting: Setting, every: Iterable[Timed]) -> None:
        """Store times in one transaction; later times of a call replace earlier ones."""
        with self._open(create=True) as connection:
            connection.execute("begin immediate")
            try:
                connection.execute(
                    f"insert or ignore into setting ({', '.join(_PLACE)}) values "
                    f"({', '.join('?' * len(_PLACE))})",
                    astuple(setting),
                )
                (place,) = connection.execute(
                    f"select id from setting where {_WHERE}", astuple(setting)
                ).fetchone()
                connection.executemany(
                    f"insert or replace into timed values ({', '.join('?' * 15)})",
                    (_written(place, timed) for timed in every),
                )
            except BaseException:
                connection.rollback()
                raise
            connection.commit()

    @contextmanager
    def _open(self, create: bool = False) -> Iterator[sqlite3.Connection]:
        """Open the file, created if asked; raise SQLite's errors with the file's name."""
        if not create and not self.path.is_file():
            raise CostModelError(
                f"There is no profile database {self.path}: measure one with `autopar profile`."
            )
        try:
            if create:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            # A file from elsewhere is data only: it is not written, and no code in it runs.
            # Rolling back the journal of a killed writer requires write permission, hence "rw".
            reads = "rw" if os.access(self.path, os.W_OK) else "ro"
            mode = "rwc" if create else reads
            where = f"file:{quote(os.fsencode(self.path.absolute()))}?mode={mode}"
            with closing(
                sqlite3.connect(where, timeout=PATIENCE_S, isolation_level=None, uri=True)
            ) as connection:
                connection.execute("pragma trusted_schema = off")
                connection.execute("pragma cell_size_check = on")
                connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
                if create:
                    self._prepare(connection)
                else:
                    connection.execute("pragma query_only = on")
                self._check(connection)
                yield connection
        # SQLite's error message about a damaged file may itself fail to decode.
        except (sqlite3.Error, OSError, UnicodeError) as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:
                raise self._foreign() from None
            raise CostModelError(
                f"The profile database {self.path} cannot be used: {error}. Name another file "
                "with --database, and run `autopar profile` to measure again."
            ) from None

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Create the tables of a new file."""
        connection.execute("begin immediate")
        (tables,) = connection.execute("select count(*) from sqlite_master").fetchone()
        if not tables:
            for statement in filter(str.strip, _TABLES.split(";")):
                connection.execute(statement)
            connection.execute(f"pragma application_id = {APPLICATION}")
            connection.execute(f"pragma user_version = {VERSION}")
        connection.commit()

    def _check(self, connection: sqlite3.Connection) -> None:
        """Refuse files of another application or version, and files with triggers or views."""
        (application,) = connection.execute("pragma application_id").fetchone()
        (version,) = connection.execute("pragma user_version").fetchone()
        if application != APPLICATION:
            raise self._foreign()
        if version != VERSION:
            raise CostModelError(
                f"{self.path} is a profile database of version {version}, not {VERSION}; name another "
                "file with --database, or delete this one and measure again with `autopar profile`."
            )
        kinds = dict(
            connection.execute("select name, type from sqlite_master where type != 'index'")
        )
        if kinds != {"setting": "table", "timed": "table"}:
            raise self._foreign()

    def _checked(self, timed: Timed) -> Timed:
        try:
            timed.check()
        except CostModelError as error:
            raise self._damaged(str(error)) from None
        return timed

    def _damaged(self, what: str) -> CostModelError:
        """Return the error for an impossible value; the whole file is then rejected."""
        return CostModelError(
            f"The profile database {self.path} is damaged: {what} Name another file with --database, or "
            "delete this one, and measure again with `autopar profile`."
        )

    def _foreign(self) -> CostModelError:
        """Return the error for another application's file; it must not suggest deleting the file."""
        return CostModelError(
            f"{self.path} is not a profile database; it was not changed. Name another file with "
            "--database: `autopar profile` makes one."
        )


_WHERE = " and ".join(f"{name} = ?" for name in _PLACE)


def _written(setting: int, timed: Timed) -> tuple[object, ...]:
    call, there = timed.call, timed.call.forward
    back, passed = call.backward, timed.backward
    return (
        setting, call.text, call.op, call.family, there.dtype, there.flops, there.nbytes,
        timed.forward.seconds, timed.forward.spread,
        *((None, None) if back is None else (back.flops, back.nbytes)),
        *((None, None) if passed is None else (passed.seconds, passed.spread)),
        timed.rows, timed.date,
    )  # fmt: skip


def _read(row: tuple[object, ...]) -> Timed:
    op, text, family, dtype, flops, nbytes, back_flops, back_nbytes, *rest = row
    forward_s, forward_spread, backward_s, backward_spread, rows, date = rest
    backward = None if back_flops is None else Work(back_flops, back_nbytes, dtype, op, "backward")  # type: ignore[arg-type]
    was_timed = (backward_s, backward_spread) != (None, None)
    passed = Pass(backward_s, backward_spread) if was_timed else None  # type: ignore[arg-type]
    forward = Work(flops, nbytes, dtype, op)  # type: ignore[arg-type]
    call = Call(op, text, family, forward, backward)  # type: ignore[arg-type]
    return Timed(call, Pass(forward_s, forward_spread), passed, rows, date)  # type: ignore[arg-type]
