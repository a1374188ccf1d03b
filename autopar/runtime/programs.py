"""Looks up the program for a batch: one per shape, planned when a batch of that shape first arrives."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from autopar.errors import InputError
from autopar.request.batch import Batch, leaves_of, mapped, top
from autopar.request.model_state import ModelState, Outside
from autopar.runtime.attributes import Follows
from autopar.runtime.batch_agreement import Captures
from autopar.runtime.expected import Expected
from autopar.runtime.inference import normal_tensors
from autopar.runtime.program import Program
from autopar.runtime.surroundings import Kept, Surroundings


class Compiles(Captures, Follows, Protocol):
    """Plans and emits programs during training; every rank makes the same calls."""

    def known_program(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], state: ModelState
    ) -> Program | None:
        """Return the program for a batch if it already exists; needs no communication."""

    def known_programs(
        self,
        whole: Mapping[str, Any],
        microbatch: Mapping[str, Any],
        pieces: int,
        state: ModelState,
    ) -> tuple[Program | None, Program] | None:
        """Return the programs for a batch's denominators and its microbatches, likewise."""

    def for_batch(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], state: ModelState
    ) -> Program:
        """Return the program for a batch of other shapes, or for the model in another state."""

    def for_microbatches(
        self,
        whole: Mapping[str, Any],
        microbatch: Mapping[str, Any],
        pieces: int,
        state: ModelState,
    ) -> tuple[Program | None, Program]:
        """Return the program that counts a batch's denominators, and the one for a microbatch."""


VALUES = 5
"""Number of distinct values of one number that triggers the warning: each value has its own plan."""


class Numbers:
    """Warns, once per key, of Python numbers that vary from batch to batch."""

    def __init__(self, example: Batch) -> None:
        self._values: dict[str, set[str]] = {}
        self.see(example)

    def see(self, batch: Batch) -> None:
        """Record the numbers in a batch that has no program yet."""
        for key, text in batch.constants:
            if not re.fullmatch(r"[-+0-9.e]+|nan|inf|-inf|True|False", text):
                continue
            values = self._values.setdefault(key, set())
            if len(values) == VALUES or text in values:
                continue
            values.add(text)
            if len(values) == VALUES:
                warnings.warn(
                    f"The number {key!r} of the batch has had {VALUES} values, and each new "
                    f"value is planned and compiled again. Pass a tensor, torch.tensor({key}): "
                    "its value may change freely (dtype=torch.float64 where the model computes "
                    "in it).",
                    stacklevel=2,
                )


class Programs:
    """The programs of one model; `first` is the one for the example inputs."""

    def __init__(
        self,
        first: Program,
        example: Batch,
        state: ModelState,
        compiler: Compiles,
        *,
        replan: bool,
        local_input: bool,
    ) -> None:
        self.first = first
        self.expected = Expected(example)
        self._compiler = compiler
        self._replan, self._local_input = replan, local_input
        self._of_batch = Kept({((state, example.signature), ()): first})
        self._of_parts = Kept()
        self._numbers = Numbers(example)
        self._surroundings = Surroundings()
        self._finish: Callable[[Program], None] = lambda _: None

    @property
    def data_axes(self) -> tuple[int, ...]:
        """Mesh axes that split dim 0 of the inputs, outermost first."""
        plan, graph = self.first.plan, self.first.graph
        for node in graph.leaves("input"):
            cuts = plan.choice[node.name].outputs[0].cuts(0) if node.outputs[0].shape else ()
            if cuts:
                return tuple(axis for _, axis in cuts)
        return ()

    @property
    def data_replicas(self) -> int:
        """Number of parts the batch is split into."""
        return math.prod(self.first.plan.mesh.sizes[axis] for axis in self.data_axes)

    def outside(self) -> Outside:
        """Return the compiler's `Captures.outside`."""
        return self._compiler.outside()

    def captured_digest(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], state: ModelState
    ) -> str:
        """Return the digest of the graph of the whole batch that this one is, or is a part of."""
        if self._local_input:
            args, kwargs = self._whole(args, kwargs)
        return self._compiler.captured_digest(args, kwargs, state)

    def for_batch(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], state: ModelState
    ) -> Program:
        """Return this batch's program; raise `InputError` for other shapes if replanning is off."""
        self.expected.check(args, kwargs)
        if self._local_input:
            args, kwargs = self._whole(args, kwargs)
        batch = Batch.of(args, kwargs)
        key = self._surroundings.key(
            (state, batch.signature),
            self._compiler.outside(),
            self._of_batch,
            self.first,
            lambda: self._compiler.known_program(args, kwargs, state),
        )
        if key not in self._of_batch:
            if state.training and not self._replan and self._is_other(batch):
                if self.expected.differences(batch):
                    raise InputError(self.expected.refusal(batch))
                raise InputError(
                    f"This batch ({batch}) differs in shape from the example inputs, and "
                    "Batches(replan=False) was passed. Pad it, drop it "
                    "(DataLoader(drop_last=True)), or pass batches=autopar.Batches(replan=True) "
                    "to autopar.parallelize."
                )
            self._numbers.see(batch)
            with normal_tensors(), self.expected.explained(batch):
                made = self._compiler.for_batch(args, kwargs, state)
            self._finish(made)
            self._of_batch.keep(key, made, self.first)
        program: Program = self._of_batch.use(key)
        return program

    def _is_other(self, batch: Batch) -> bool:
        return batch.signature != self.expected.example.signature

    def for_parts(
        self, batch: Mapping[str, Any], piece: Mapping[str, Any], pieces: int, state: ModelState
    ) -> tuple[Program | None, Program]:
        """Return the program that counts a batch's denominators (None: none needed), and the one that
        runs a microbatch."""
        self.expected.check((), batch)
        if self._local_input:
            batch, piece = self._whole((), batch)[1], self._whole((), piece)[1]
        key = self._surroundings.key(
            (state, Batch.of((), batch).signature, pieces),
            self._compiler.outside(),
            self._of_parts,
            None,
            lambda: self._compiler.known_programs(batch, piece, pieces, state),
        )
        if key not in self._of_parts:
            with normal_tensors(), self.expected.explained(Batch.of((), batch)):
                counts, program = self._compiler.for_microbatches(batch, piece, pieces, state)
            self._finish(program)
            self._of_parts.keep(key, (counts, program), None)
        made: tuple[Program | None, Program] = self._of_parts.use(key)
        return made

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Apply `torch.compile` to the blocks of every program, including those made later."""
        self._finish = lambda program: program.compile(*args, **kwargs)
        programs = [*self._of_batch.values(), *(program for _, program in self._of_parts.values())]
        for program in programs:
            self._finish(program)

    def _whole(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the global batch that this rank's part belongs to; split tensors are on meta."""
        plan, graph = self.first.plan, self.first.graph
        split = {
            node.target
            for node in graph.leaves("input")
            if plan.choice[node.name].outputs[0].is_split
        }

        def whole(value: Any, key: str) -> Any:
            if not isinstance(value, torch.Tensor) or key not in split:
                return value
            shape = (value.shape[0] * self.data_replicas, *value.shape[1:])
            return value.new_empty(shape, device="meta")

        made = {key: mapped(value, top(key), whole) for key, value in kwargs.items()}
        return tuple(mapped(value, str(i), whole) for i, value in enumerate(args)), made


def samples_in(batch: Mapping[str, Any]) -> int:
    """Return the number of samples of a batch: the size of dim 0."""
    tensors = [v for _, v in leaves_of(dict(batch), "") if isinstance(v, torch.Tensor) and v.dim()]
    if not tensors or not tensors[0].shape[0]:
        raise InputError(
            "The batch is empty, or has no tensor with a first dim: it cannot be divided."
        )
    return int(tensors[0].shape[0])


def in_parts(batch: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Split the batch into `count` equal parts along dim 0; other values go to every part."""
    size = samples_in(batch)
    if count < 1 or size % count:
        fitting = ", ".join(str(n) for n in range(1, size + 1) if size % n == 0)
        raise InputError(
            f"A batch of {size} cannot be cut into {count} equal microbatches: pass microbatches= one "
            f"of {fitting}, or batches of a multiple of {count}."
        )
    step = size // count

    def piece(start: int) -> dict[str, Any]:
        def part(value: Any, _: str) -> Any:
            is_part = isinstance(value, torch.Tensor) and value.dim() and value.shape[0] == size
            return value[start : start + step] if is_part else value

        return {key: mapped(value, top(key), part) for key, value in batch.items()}

    return [piece(start) for start in range(0, size, step)]
