"""A program: the emitted source of one captured graph under one plan, loaded to run on local tensors."""

from __future__ import annotations

import itertools
import linecache
import re
import sys
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from autopar.errors import InputError, RuleError, SourceError
from autopar.ir.graph import Graph, Tensor, is_random
from autopar.ir.placement import P, Sharding
from autopar.ir.result_layout import leaving
from autopar.ops.operators import callable_of
from autopar.plans.grouping import groups
from autopar.plans.plan import Plan
from autopar.runtime import _torch, recompute
from autopar.runtime.marks import marked
from autopar.runtime.module import Module, Namespace


@dataclass(frozen=True)
class Program:
    """A plan, and the emitted module class that implements it."""

    plan: Plan
    graph: Graph
    source: str
    path: Path
    model: type[Module]
    blocks: tuple[type[Module], ...]
    module: ModuleType
    """The emitted module that defines them."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Keys of forward's input tensors, in order."""
        return tuple(node.target for node in self.graph.leaves("input"))

    def dtype(self, key: str) -> torch.dtype:
        """Return the dtype that the graph expects of an input."""
        return getattr(torch, self._input(key).dtype)  # type: ignore[no-any-return]

    def entered(self, tensors: Mapping[str, torch.Tensor], key: str, device: str) -> torch.Tensor:
        """Return an input on its device in its dtype; raise `InputError` if the call lacks it."""
        if key not in tensors:
            raise InputError(
                f"The model was captured with the input {key!r}, which this call has not. Pass it the "
                "way the example inputs were passed."
            )
        tensor = tensors[key].to(device)
        return tensor.to(self.dtype(key)) if tensor.is_floating_point() else tensor

    def padded(self, key: str, tensor: torch.Tensor) -> torch.Tensor:
        """Pad an input to the size of the step by repeating its last entry.

        Repeated entries are valid inputs of the model; the results for them are ignored.
        """
        for pad in self._input(key).pads:
            last = tensor.narrow(pad.dim, pad.size - 1, 1)
            tensor = torch.cat([tensor, *[last] * (pad.to - pad.size)], pad.dim)
        return tensor

    def _input(self, key: str) -> Tensor:
        return next(n.outputs[0] for n in self.graph.leaves("input") if n.target == key)

    @cached_property
    def converts_together(self) -> bool:
        """Whether weights of a block share one collective."""
        plan = self.plan
        return bool(groups(self.graph, plan.conversions, plan.mesh, plan.precision))

    @cached_property
    def is_random(self) -> bool:
        """Whether the forward draws random numbers."""
        return any(map(is_random, self.graph.nodes))

    @property
    def regathers(self) -> bool:
        """Whether any gather is repeated in the backward."""
        return any(conversion.regather for conversion in self.plan.conversions)

    @cached_property
    def sums_loss_alone(self) -> bool:
        """Whether the final loss is the only differentiable scalar that the forward sums over ranks.

        If so, no computation waits for that all-reduce.
        """
        plan, graph = self.plan, self.graph
        if graph.loss is None or graph.consumers[graph.loss]:
            return False
        summed = {
            conversion.tensor
            for conversion in plan.conversions
            if conversion.source[conversion.axis] is P
            and not graph.tensors[conversion.tensor].shape
            and graph.tensors[conversion.tensor].differentiable
        }
        return summed == {graph.loss}

    @property
    def is_compiled(self) -> bool:
        """Whether the forward is compiled by `torch.compile`."""
        return self.model._compiled

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Apply `torch.compile` to the forward of every emitted block, or of a model without blocks."""
        _register(self)
        for block in self.blocks or (self.model,):
            whole = recompute.within_graph(block.forward, block.recompute, self.regathers)
            block.forward = torch.compile(whole, *args, **kwargs)  # type: ignore[method-assign]
            block._compiled = True
        self.model._compiled = True

    @cached_property
    def marked(self) -> type[Module]:
        """The model class with profiler spans around its operator groups and conversions."""
        module = marked(self.source, self.path, f"autopar_marked_{self.plan.digest}")
        return getattr(module, self.graph.name)  # type: ignore[no-any-return]

    def run(self, tree: Namespace, inputs: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the local results by tensor name of the graph."""
        is_marked = _torch.profiling() and not self.is_compiled
        results = (self.marked if is_marked else self.model)(tree)(*inputs)
        names = self.graph.results
        if not isinstance(results, tuple) or len(results) != len(names):
            raise SourceError(
                f"{self.path}: {self.model.__name__}.forward must return {len(names)} tensors, "
                f"({', '.join(names)}), as the plan says."
            )
        return dict(zip(names, map(tree._constants.apart, results), strict=True))

    def result_form(self, name: str) -> Sharding:
        """Return the sharding of a result: that of its operator, with partial sums reduced."""
        made = self.plan.sharding(self.graph, name)
        return leaving(self.graph.tensors[name], self.graph, made)


_AXIS_BY_NAME = re.compile(
    r"= (?:all_\w+|reduce_scatter|shard|replicate|invariant|partial)\([^#\n]*?, \"\w+\", [RIPSN]"
)


_COMPILED: dict[str, weakref.ref[Program]] = {}
"""The compiled programs by the names of their modules."""


def _register(program: Program) -> None:
    """Let the compiler find the globals of a program's functions: by the name of their module.

    Modules of programs that are gone leave `sys.modules` here, and not when they are collected: somebody
    may be iterating over it then.
    """
    for name in [name for name, there in _COMPILED.items() if there() is None]:
        del _COMPILED[name], sys.modules[name]
    name = program.module.__name__
    sys.modules[name], _COMPILED[name] = program.module, weakref.ref(program)


_NUMBERS = itertools.count()
"""Stages may have equal plans, and still are modules of their own."""


def load(plan: Plan, graph: Graph, source: str, path: Path) -> Program:
    """Execute the emitted text, whose file is `path`; it must define a class named after the model."""
    _registered(graph, path)
    if _AXIS_BY_NAME.search(source):
        raise SourceError(
            f"{path} was emitted by an earlier version, whose collectives name the axis in quotes. Emit "
            "it again (autopar emit, or parallel.source) and repeat your edit there."
        )
    name = f"autopar_emitted_{plan.digest}_{next(_NUMBERS)}"
    module = ModuleType(name)
    module.__dict__["__file__"] = str(path)
    try:
        # Execute the text that ranks agreed on, not the file or its byte code, which may have changed.
        exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)
    except (Exception, RecursionError) as error:
        raise SourceError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    linecache.cache[str(path)] = (len(source), None, source.splitlines(keepends=True), str(path))
    model: Any = getattr(module, graph.name, None)
    if not (isinstance(model, type) and issubclass(model, Module)):
        raise SourceError(f"{path} defines no class {graph.name}(Module).")
    defined = (v for v in vars(module).values() if getattr(v, "__module__", None) == name)
    blocks = tuple(v for v in defined if v is not model and issubclass(v, Module))
    return Program(plan, graph, source, path, model, blocks, module)


def _registered(graph: Graph, path: Path) -> None:
    """Raise `SourceError` if the file calls an operator that is not registered in this process."""
    missing = []
    for op in dict.fromkeys(node.op for node in graph.nodes if not node.is_leaf):
        try:
            callable_of(op)
        except RuleError:
            missing.append("::".join(op.split(".")[:2]))
    if missing:
        raise SourceError(
            f"{path} calls {', '.join(missing)}, which nothing has registered in this process. Import "
            "the module that defines the operator before autopar.parallelize, on every rank."
        )
