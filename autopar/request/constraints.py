"""Constraints: what a person pins.  Patterns over names say which types are allowed.

A constraint speaks of one mesh axis (or all) and one subject:

    stored    a parameter at rest            S, I
    leaf      a parameter in the step        S, R, I
    used      a parameter where an operator reads it
    tensor    an activation, where it is made and where it is read

`allowed` is a preference: of the candidates whose types are all in some alternative, those with the
most types in the first one stay, so ``S, else I`` means "sharded where some dim divides".  A type
is meant as a rank sees it (`Sharding.local`), so ``S(0)`` matches the inner of two nested splits
too; ``S`` is any shard, and ``S(batch)`` the one that splits the batch's samples, wherever they
are in that tensor (`autopar.rules.batch`).

What is pinned has to be so.  What is forbidden may be anything else: of each form that is spoken of, no
type on the axis is one of the first alternative.  What is preferred is so where some candidate has it;
where none has, all stay.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from typing import Literal, cast, get_args

from autopar.errors import ConstraintError, PlacementError
from autopar.ir.mesh import Mesh
from autopar.ir.placement import N, S, Sharding, Type, parse_type
from autopar.utils.suggest import near

Subject = Literal["stored", "leaf", "used", "tensor"]
Kind = Literal["pin", "forbid", "prefer"]
Entry = str | dict[str, str]
"""``"[S(0), R]"``, or ``{axis: alternatives}``."""
BATCH = "S(batch)"
"""The split by samples, whichever dim they are."""
Given = dict[str, Entry] | dict[str, dict[str, Entry]]
"""What is said of patterns; or such tables by kind."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """On `axis` (None: every axis), names like `pattern` may only have the allowed types."""

    subject: Subject
    pattern: str
    allowed: tuple[tuple[str, ...], ...]
    axis: str | None = None
    optional: bool = False
    """Whether it may match nothing: presets speak of all models at once."""
    kind: Kind = "pin"
    at: str = field(default="", compare=False)
    """Where it was written: a file and its line, or a flag."""

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise `ConstraintError` unless every word can be read."""
        if self.subject not in get_args(Subject):
            raise ConstraintError(f"A constraint is on {get_args(Subject)}, not {self.subject!r}.")
        if self.kind not in get_args(Kind):
            raise ConstraintError(f"A constraint is one of {get_args(Kind)}, not {self.kind!r}.")
        if self.kind == "forbid" and len(self.allowed) > 1:
            raise ConstraintError(
                f"What is forbidden of {self.pattern!r} has no 'else': list all with |."
            )
        if not self.allowed or not all(self.allowed):
            raise ConstraintError(f"The constraint on {self.pattern!r} allows nothing.")
        for token in (token for alternative in self.allowed for token in alternative):
            if token not in ("S", BATCH):
                _type(token)

    @classmethod
    def of(cls, subject: Subject, pattern: str, text: str, axis: str | None = None) -> Constraint:
        """Read alternatives such as ``S(0) | R, else I``."""
        alternatives = re.split(r",\s*else\s+", text)
        allowed = tuple(tuple(t.strip() for t in a.split("|")) for a in alternatives)
        return cls(subject, pattern, allowed, axis)

    def matches(self, name: str) -> bool:
        """Whether this constraint speaks of the tensor or parameter called `name`."""
        return name == self.pattern or fnmatchcase(name, self.pattern)

    @property
    def of_batch(self) -> bool:
        """Whether one has to know where the batch is."""
        return any(BATCH in alternative for alternative in self.allowed)

    def rank(self, sharding: Sharding, mesh: Mesh, batch: S | None = None) -> int | None:
        """The first alternative that the sharding meets on the constrained axes, None if there is none.

        An axis of one device splits nothing, so it meets the first.  `batch`: the tensor's split by
        samples.
        """
        axes = range(len(mesh)) if self.axis is None else (mesh.index(self.axis),)
        kinds = [
            (sharding.local(a, mesh), batch is not None and sharding.splits(batch, a, mesh))
            for a in axes
            if mesh.sizes[a] > 1
        ]
        if self.kind == "forbid":
            hit = any(_allows(token, *kind) for token in self.allowed[0] for kind in kinds)
            return None if hit else 0
        for place, tokens in enumerate(self.allowed):
            if all(any(_allows(token, *kind) for token in tokens) for kind in kinds):
                return place
        return len(self.allowed) if self.kind == "prefer" else None

    def __str__(self) -> str:
        words = ", else ".join(" | ".join(alternative) for alternative in self.allowed)
        word = {"pin": "", "forbid": "not ", "prefer": "preferably "}[self.kind]
        return f"{self.subject} {self.pattern!r} on {self.axis or 'every axis'}: {word}{words}"

    @property
    def line(self) -> str:
        """With where it was written."""
        return f"{self.at}: {self}" if self.at else str(self)


def _allows(token: str, kind: Type, by_samples: bool) -> bool:
    """A tensor without gradient is as whole as I and R are."""
    if token == BATCH:
        return by_samples
    if token == "S":
        return isinstance(kind, S)
    return kind == _type(token) or (kind is N and token in ("I", "R"))


@cache
def _type(token: str) -> Type:
    try:
        return parse_type(token)
    except PlacementError as error:
        raise ConstraintError(str(error)) from None


def from_user(constraints: Given | None, mesh: Mesh) -> tuple[Constraint, ...]:
    """Read what `parallelize(constraints=)` takes: ``{pattern: sharding}``, which pins, or such tables
    below ``"pin"``, ``"forbid"`` and ``"prefer"``.

    A pattern is a name, ``*`` and ``?`` allowed; ``leaf:``, ``stored:`` or ``used:`` in front makes
    it speak of a parameter at that place (a bare parameter name means its leaf).  A sharding is
    ``"[S(0), R]"`` with ``*`` for any type, or ``{axis: alternatives}``.
    """
    if constraints and set(constraints) <= set(get_args(Kind)):
        tables = cast(dict[Kind, dict[str, Entry]], constraints)
        every = (made for kind, of in tables.items() for made in of_kind(kind, of, mesh))
        return tuple(replace(made, at=f"[{made.kind}]") for made in every)
    found: list[Constraint] = []
    for key, value in cast(dict[str, Entry], constraints or {}).items():
        head, _, rest = key.partition(":")
        subject, pattern = (head, rest) if rest and head in get_args(Subject) else ("tensor", key)
        by_axis = _by_axis(key, value, mesh)
        if not by_axis:
            raise ConstraintError(
                f"Constraint {key!r}: {value} says nothing, as * stands for any type. Write a type for "
                "some axis, such as S, or leave it out."
            )
        if isinstance(value, dict) and any(map(_is_entry, value.values())):
            raise ConstraintError(
                f"{key!r} holds constraints, but is no table: tables are "
                f"{', '.join(map(repr, get_args(Kind)))}, and what stands beside them is in one of them."
                + near(key, get_args(Kind))
            )
        for axis, text in by_axis.items():
            mesh.index(axis)
            found.append(Constraint.of(subject, pattern, text, axis))  # type: ignore[arg-type]
    return tuple(found)


def of_kind(kind: Kind, given: dict[str, Entry], mesh: Mesh) -> tuple[Constraint, ...]:
    """What one table says."""
    return tuple(replace(made, kind=kind) for made in from_user(given, mesh))


def _is_entry(value: object) -> bool:
    """What stands behind a pattern, not behind an axis."""
    return isinstance(value, dict) or str(value).lstrip().startswith("[")


def _by_axis(key: str, value: Entry, mesh: Mesh) -> dict[str, str]:
    if isinstance(value, dict):
        return value
    if not isinstance(value, str):
        raise ConstraintError(f"Constraint {key!r}: write [S(0), R] as a text, not {value!r}.")
    body = value.strip()
    if not (body.startswith("[") and body.endswith("]")):
        raise ConstraintError(
            f"Constraint {key!r}: write [S(0), R] or {{axis: 'S(0)'}}, not {value!r}."
        )
    words = re.split(r",(?!\s*of)", body[1:-1])
    if len(words) != len(mesh):
        raise ConstraintError(
            f"Constraint {key!r} has {len(words)} types; the mesh ({mesh}) has {len(mesh)}."
        )
    return {
        name: word.strip()
        for name, word in zip(mesh.names, words, strict=True)
        if word.strip() != "*"
    }
