"""Reads the JSON objects of other planners' files, and says where one is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from autopar.errors import PlanError
from autopar.utils.suggest import near

Made = TypeVar("Made", bound="Record")
MISSPELT = 0.8
"""Similarity (0 to 1) from which an unknown key is taken for a misspelt one."""


class Record(BaseModel):
    """An object of a file.  Other keys are debug information, but misspelt ones are errors."""

    model_config = ConfigDict(extra="allow", frozen=True)

    @model_validator(mode="after")
    def _refuse_misspelt(self) -> Self:
        absent = [name for name in type(self).model_fields if name not in self.model_fields_set]
        for key in self.model_extra or ():
            suggestion = near(key, absent, MISSPELT)
            if suggestion:
                raise ValueError(f"unknown key {key!r}.{suggestion}")
        return self

    def unread(self, where: str = "the file") -> Iterator[str]:
        """Yield the keys that are not read, with the place where they are."""
        for key in self.model_extra or ():
            yield f"{key} of {where}"
        for name in type(self).model_fields:
            value = getattr(self, name)
            for each in value if isinstance(value, Sequence) else ():
                if isinstance(each, Record):
                    yield from each.unread(name)


def record_of(kind: type[Made], text: str, what: str) -> Made:
    """Return a file's record; raise `PlanError` that names the first key and record that are wrong."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PlanError(f"this is not {what}: {error}") from None
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise PlanError(f"this is not {what}: {_first_fault(error, content)}") from None


def _first_fault(error: ValidationError, content: Any) -> str:
    """Return the first fault as ``place: message``, with the record's own id in the place."""
    first = error.errors()[0]
    places = list(first["loc"])
    if len(places) > 1 and isinstance(places[1], int):
        places[:2] = [_named(str(places[0]), places[1], content)]
    message = first["msg"].removeprefix("Value error, ").rstrip(".")
    return f"{', '.join(map(str, places)) or 'the file'}: {message}"


def _named(key: str, index: int, content: Any) -> str:
    """Return ``node 17`` or ``edge 3 from 17 to 18`` for an entry of a list; entries count from 0."""
    entry = content[key][index]
    kind = key.removesuffix("s")
    if isinstance(entry, dict) and "id" in entry:
        return f"{kind} {entry['id']!r}"
    if isinstance(entry, dict) and {"sourceId", "destId"} <= entry.keys():
        return f"{kind} {index} from {entry['sourceId']!r} to {entry['destId']!r}"
    return f"{kind} {index}"


def refuse_wrong_ids(ids: Sequence[int], edges: Sequence[tuple[int, int]]) -> None:
    """Raise `PlanError` if two nodes have one id, or an edge has no node at an end or one at both."""
    known = set(ids)
    if len(known) < len(ids):
        twice = next(each for at, each in enumerate(ids) if each in ids[:at])
        raise PlanError(f"two nodes have the id {twice}; give each an id of its own")
    for index, (source, target) in enumerate(edges):
        for end in (source, target):
            if end not in known:
                raise PlanError(f"edge {index} from {source} to {target}: no node has the id {end}")
        if source == target:
            raise PlanError(f"edge {index} joins node {source} to itself; leave it out")
