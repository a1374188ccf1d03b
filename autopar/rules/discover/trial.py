"""Tests one claim at a time, a split factor or partial operands, against the whole operator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autopar.ir.mesh import Mesh
from autopar.plans.decisions import OpSharding
from autopar.rules.candidates import Option, combine
from autopar.rules.discover.laboratory import Bench, accepts
from autopar.rules.instance import Instance
from autopar.rules.local import localize
from autopar.rules.prove import WrongError, check

RANKS = (2, 3)
POSITIONS = (1, 2, 3)
"""Every factor is split as one, two and three blocks, which shows dependences across borders."""


class Refuted(Exception):
    """A trial has shown that a claim is wrong."""


@dataclass(frozen=True)
class Trial:
    """One sharding of the call on some ranks, with a description of the claim that it tests."""

    what: str
    sharding: OpSharding
    mesh: Mesh


def splits(factor: str, instance: Instance, bench: Bench) -> Iterator[Trial]:
    """Yield a trial for every split of a factor that its size allows."""
    for ranks in RANKS:
        for position in POSITIONS:
            option = Option(factor=factor, position=position)
            blocks = "" if position == 1 else f", each of its {position} blocks"
            what = f"splitting {factor}{blocks} over {ranks} ranks"
            yield from _trial(what, instance, bench, (option,), Mesh.of(ranks))


def partials(operands: frozenset[int], instance: Instance, bench: Bench) -> Iterator[Trial]:
    """Yield trials in which all of these operands are partial sums."""
    named = ", ".join(map(str, sorted(operands)))
    for ranks in RANKS:
        what = f"operand {named} partial on {ranks} ranks"
        yield from _trial(what, instance, bench, (Option(partial=operands),), Mesh.of(ranks))


def pairs(instance: Instance, bench: Bench) -> Iterator[Trial]:
    """Yield trials of two claims at once, one per mesh axis, including nested splits of one factor."""
    options = (
        *(Option(factor=factor) for factor in instance.shardable),
        *(Option(partial=operands) for operands in instance.linear),
    )
    yield from _trial("two claims together", instance, bench, options, Mesh.of(2, 2))


def single_entries(factor: str, instance: Instance, bench: Bench) -> Iterator[Trial]:
    """Yield trials with as many ranks as the factor has entries."""
    mesh = Mesh.of(instance.sizes[factor])
    what = f"splitting {factor} into single entries"
    yield from _trial(what, instance, bench, (Option(factor=factor),), mesh)


def _trial(
    what: str, instance: Instance, bench: Bench, options: tuple[Option, ...], mesh: Mesh
) -> Iterator[Trial]:
    for sharding in combine(instance, options, bench.operands, bench.node, mesh):
        yield Trial(what, sharding, mesh)


def conduct(trials: Iterator[Trial], bench: Bench) -> int:
    """Run trials on every draw and return their number; raise `Refuted` at the first failure."""
    done = 0
    for trial in trials:
        _accepted(trial, bench)
        for seed, whole in enumerate(bench.wholes):
            try:
                check(whole, trial.sharding, trial.mesh, seed)
            except Exception as error:
                mismatch = (
                    str(error)
                    if isinstance(error, WrongError)
                    else f"{type(error).__name__}: {error}"
                )
                forms = f"{_listed(trial.sharding.inputs)} -> {_listed(trial.sharding.outputs)}"
                shapes = ", ".join(str(list(shape)) for shape in bench.shapes)
                raise Refuted(f"{trial.what}, {forms} of shapes {shapes}: {mismatch}") from None
            done += 1
    return done


def _accepted(trial: Trial, bench: Bench) -> None:
    local = localize(bench.node, trial.sharding, bench.graph, trial.mesh)
    shapes = tuple(
        form.local_shape(shape, trial.mesh)
        for form, shape in zip(trial.sharding.inputs, bench.shapes, strict=True)
    )
    if not accepts(bench.node, local, bench.operands, shapes):
        sizes = ", ".join(str(list(shape)) for shape in shapes)
        raise Refuted(f"{trial.what}: the operator does not accept the shapes {sizes}")


def _listed(forms: tuple[object, ...]) -> str:
    return ", ".join(map(str, forms))
