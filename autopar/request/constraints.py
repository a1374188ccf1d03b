"""Constraints: name patterns with the types that matching tensors may have.

A constraint applies to one mesh axis (or all) and one subject:

    stored    a parameter at rest            S, I
    leaf      a parameter in the step        S, R, I
    used      a parameter as an operand of an operator
    tensor    an activation, as a result and as an operand

`allowed` lists alternatives in order of preference.  Of the candidates whose types are all in some
alternative, those with the most types in the first alternative are kept, so ``S, else I`` means
"sharded if some dim divides".  Types are those that a rank sees (`Sharding.local`), so ``S(0)`` also
matches the inner of two nested splits.  ``S`` is any shard.  ``S(batch)`` is the split of the batch's
samples, whichever dim they are in that tensor, and ``S(sequence)`` that of their positions
(`autopar.rules.batch`).

A pinned type is required.  A forbidden one excludes each sharding that has a type of the first
alternative on the axis.  A preferred one restricts the candidates only if some candidate has it.
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
"""The split of the batch's samples, whichever dim they are."""
SEQUENCE = "S(sequence)"
"""The split of the samples' positions, whichever dim they are."""
PLACES = BATCH, SEQUENCE
"""The splits whose dims follow from the operators' rules."""
Given = dict[str, Entry] | dict[str, dict[str, Entry]]
"""An entry per pattern; or such dicts by kind."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """Restricts tensors that match `pattern` to the allowed types on `axis` (None: every axis)."""

    subject: Subject
    pattern: str
    allowed: tuple[tuple[str, ...], ...]
    axis: str | None = None
    optional: bool = False
    """Whether it may match nothing: presets are written for all models."""
    kind: Kind = "pin"
    at: str = field(default="", compare=False)
    """Its source: a file and line, or a flag."""

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise `ConstraintError` unless the subject, the kind and all types are valid."""
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
        tokens = [token for alternative in self.allowed for token in alternative]
        for token in tokens:
            if token not in ("S", *PLACES):
                _type(token)
        if set(PLACES) <= set(tokens):
            raise ConstraintError(
                f"The constraint on {self.pattern!r} has both {BATCH} and {SEQUENCE}; write one of "
                "them, or the dims."
            )

    @classmethod
    def of(cls, subject: Subject, pattern: str, text: str, axis: str | None = None) -> Constraint:
        """Parse alternatives such as ``S(0) | R, else I``."""
        alternatives = re.split(r",\s*else\s+", text)
        allowed = tuple(tuple(t.strip() for t in a.split("|")) for a in alternatives)
        return cls(subject, pattern, allowed, axis)

    def matches(self, name: str) -> bool:
        """Whether this constraint applies to the tensor or parameter called `name`."""
        return name == self.pattern or fnmatchcase(name, self.pattern)

    @property
    def place(self) -> str:
        """The split of `PLACES` whose dims matching requires, or ""."""
        tokens = {token for alternative in self.allowed for token in alternative}
        return next((place for place in PLACES if place in tokens), "")

    def rank(self, sharding: Sharding, mesh: Mesh, at: S | None = None) -> int | None:
        """Return the index of the first alternative that the sharding meets on the constrained axes.

        None if it meets none and the constraint is not a preference.  Axes of one device split nothing
        and are ignored.  `at` is the tensor's split by `place`.
        """
        axes = range(len(mesh)) if self.axis is None else (mesh.index(self.axis),)
        kinds = [
            (sharding.local(a, mesh), at is not None and sharding.splits(at, a, mesh))
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
        """The constraint with its source, for messages."""
        return f"{self.at}: {self}" if self.at else str(self)


def _allows(token: str, kind: Type, by_place: bool) -> bool:
    """Whether a type matches a token; N (no gradient) matches both I and R, as it is replicated too."""
    if token in PLACES:
        return by_place
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
    """Parse the `constraints` argument of `parallelize`.

    It is ``{pattern: sharding}``, which pins, or such dicts below ``"pin"``, ``"forbid"`` and
    ``"prefer"``.  A pattern is a name with optional ``*`` and ``?``.  The prefix ``leaf:``,
    ``stored:`` or ``used:`` selects the subject of a parameter (without prefix its leaf).  A sharding
    is ``"[S(0), R]"`` with ``*`` for any type, or ``{axis: alternatives}``.
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
                f"Constraint {key!r}: {value} constrains nothing, because * stands for any type. "
                "Write a type for some axis, such as S, or leave it out."
            )
        if isinstance(value, dict) and any(map(_is_entry, value.values())):
            raise ConstraintError(
                f"{key!r} holds constraints, but is not a table: the tables are "
                f"{', '.join(map(repr, get_args(Kind)))}, and every constraint belongs in one of "
                "them." + near(key, get_args(Kind))
            )
        for axis, text in by_axis.items():
            mesh.index(axis)
            found.append(Constraint.of(subject, pattern, text, axis))  # type: ignore[arg-type]
    return tuple(found)


def of_kind(kind: Kind, given: dict[str, Entry], mesh: Mesh) -> tuple[Constraint, ...]:
    """Parse the constraints of one table, all of the given kind."""
    return tuple(replace(made, kind=kind) for made in from_user(given, mesh))


def _is_entry(value: object) -> bool:
    """Whether a value is an entry of a pattern, not alternatives of an axis."""
    return isinstance(value, dict) or str(value).lstrip().startswith("[")


def _by_axis(key: str, value: Entry, mesh: Mesh) -> dict[str, str]:
    if isinstance(value, dict):
        return value
    if not isinstance(value, str):
        raise ConstraintError(f"Constraint {key!r}: write [S(0), R] as a string, not {value!r}.")
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
