"""Matches the tensors of a weights source with those of the model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import nn

from autopar.errors import InputError
from autopar.runtime.weights.source import Source
from autopar.runtime.weights.target import Target

LISTED = 8
"""Most names that a message lists."""


@dataclass(frozen=True)
class Match:
    """`names` maps each target that the source has to its names there (several if tied)."""

    names: Mapping[str, tuple[str, ...]]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]


@dataclass(frozen=True)
class Dialect:
    """Other names that a model's tensors may have in a source.

    `tied` are a tensor's other names in the model.  transformers saves a bare model without the
    `prefix` that its tensors have in a model with a head.  `ignored` are patterns of obsolete names.
    """

    tied: Mapping[str, tuple[str, ...]]
    prefix: str = ""
    ignored: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: nn.Module, aliases: Iterable[tuple[str, str]]) -> Dialect:
        """Make the dialect of a model, whose ties are given as (other name, name) pairs."""
        tied: dict[str, tuple[str, ...]] = {}
        for other, name in aliases:
            tied[name] = (*tied.get(name, ()), other)
        prefix = getattr(model, "base_model_prefix", "")
        ignored = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
        has_head = isinstance(prefix, str) and bool(prefix) and hasattr(model, prefix)
        return cls(tied, f"{prefix}." if has_head else "", tuple(ignored))

    def match(self, targets: Mapping[str, Target], source: Source) -> Match:
        """Match targets with the source's names; raise `InputError` if shapes differ."""
        shapes = source.shapes
        bare = bool(self.prefix) and not any(name.startswith(self.prefix) for name in shapes)
        names: dict[str, tuple[str, ...]] = {}
        missing = []
        for name in targets:
            ours = (name, *self.tied.get(name, ()))
            if bare:
                ours += tuple(own.removeprefix(self.prefix) for own in ours)
            found = tuple(dict.fromkeys(own for own in ours if own in shapes))
            if found:
                names[name] = found
            else:
                missing.append(name)
        used = {own for found in names.values() for own in found}
        unexpected = tuple(n for n in shapes if n not in used and not self._ignores(n))
        self._check_shapes(targets, names, source)
        return Match(names, tuple(missing), unexpected)

    def _ignores(self, name: str) -> bool:
        return any(re.search(pattern, name) for pattern in self.ignored)

    def _check_shapes(
        self, targets: Mapping[str, Target], names: Mapping[str, tuple[str, ...]], source: Source
    ) -> None:
        wrong = [
            f"{own!r} is {list(source.shapes[own])}, the model's {list(targets[name].shape)}"
            for name, found in names.items()
            for own in found
            if source.shapes[own] != targets[name].shape
        ]
        if wrong:
            raise InputError(
                f"{source} does not fit the model: {_listed(wrong, '; ')}. Build the model with the "
                "configuration that the weights were made with."
            )


@dataclass(frozen=True)
class Advice:
    """The remedies in messages for names that the source lacks, for unexpected names, and for both."""

    missing: str
    unexpected: str = "drop the extra ones"
    both: str = ""


FOR_PARALLELIZE = Advice(
    "pass weights=autopar.Weights(source, init=...) to initialise the missing ones"
)
FOR_LOAD_WEIGHTS = Advice("add the missing ones")
FOR_LOAD_STATE_DICT = Advice("add the missing ones", both=", or load it with strict=False")


def refuse_leftovers(
    source: Source, missing: Iterable[str], unexpected: Iterable[str], advice: Advice
) -> None:
    """Raise `InputError` if there are missing or unexpected names."""
    absent, extra = [repr(n) for n in missing], [repr(n) for n in unexpected]
    if not absent and not extra:
        return
    faults = [f"has no {_listed(absent)}"] * bool(absent)
    faults += [f"has {_listed(extra)}, which the model lacks"] * bool(extra)
    ways = [advice.missing] * bool(absent) + [advice.unexpected] * bool(extra)
    raise InputError(
        f"{source} does not fit the model: it {' and '.join(faults)}. Rename its tensors to the "
        f"model's names, or {' and '.join(ways)}{advice.both}."
    )


def _listed(words: list[str], separator: str = ", ") -> str:
    more = f"{separator}and {len(words) - LISTED} more" if len(words) > LISTED else ""
    return separator.join(words[:LISTED]) + more
