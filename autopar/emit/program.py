"""Converts a plan and its graph to statements: operators on local tensors, and conversions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace

from autopar.emit.expressions import expression
from autopar.emit.reshapes import said_plainly
from autopar.emit.statement import Part, Statement, Value, Weight
from autopar.emit.text import literal
from autopar.ir.blocks import is_hub
from autopar.ir.graph import Arg, DType, Graph, Node, Origin, Saved, Tensor, is_random
from autopar.ir.mesh import Mesh
from autopar.ir.placement import I, P, R, S, Sharding
from autopar.ir.result_layout import leaving
from autopar.memory.lifetimes import Lifetimes
from autopar.ops.operators import makes_tensors, returns_list
from autopar.plans.decisions import Conversion, OpSharding, reduction_dtype
from autopar.plans.grouping import Group, groups, is_gather
from autopar.plans.plan import Plan
from autopar.utils.identifiers import is_attribute

Local = tuple[tuple[Arg, ...], tuple[tuple[str, Arg], ...]]
Localize = Callable[[Node, OpSharding, Graph, Mesh], Local]
"""Rewrites literal sizes in an operator's arguments to those of one rank's shard."""


def program(
    plan: Plan, graph: Graph, localize: Localize, saved: Mapping[str, Saved]
) -> tuple[Statement, ...]:
    """Return all statements of the forward pass, in order."""
    writer = _Program(plan, graph, localize, Lifetimes.of(plan, graph, saved))
    for node in graph.nodes:
        writer.add(node)
    writer.finish()
    return tuple(writer.statements)


class _Program:
    def __init__(self, plan: Plan, graph: Graph, localize: Localize, lives: Lifetimes) -> None:
        self.plan, self.graph, self.localize = plan, graph, localize
        self._freed, self._reduced = lives.freed_behind(), lives.keeps.again.reduced
        self.statements: list[Statement] = []
        self._bound: dict[Value, Value | Weight] = {}
        self._steps: defaultdict[str, list[Conversion]] = defaultdict(list)
        for conversion in plan.conversions:
            self._steps[conversion.tensor].append(conversion)
        found = groups(graph, plan.conversions, plan.mesh, plan.precision)
        self._group_of = {
            (step.tensor, step.source, step.target): group
            for group in found
            for member in group.members
            for step in [self._steps[member.tensor][group.hop]]
        }

    def add(self, node: Node) -> None:
        """Add the node's statement after the conversions of its operands; convert a hub's outputs."""
        choice = self.plan.choice[node.name]
        if node.op in ("parameter", "buffer"):
            self._bound[Value(node.outputs[0].name, choice.outputs[0])] = Weight(node.target)
        elif node.op in ("input", "received"):
            value = Value(node.outputs[0].name, choice.outputs[0])
            self._bound[value] = value
        else:
            self._compute(node, choice)
        if is_hub(node, self.graph):
            for tensor in node.outputs:
                for conversion in self._steps[tensor.name]:
                    self._reach(tensor.name, conversion.target, node.origin)

    def finish(self) -> None:
        """Convert the results to the shardings in which they leave."""
        for name, form in result_forms(self.plan, self.graph):
            self._reach(name, form, Origin())

    def _compute(self, node: Node, choice: OpSharding) -> None:
        bound: dict[str, Value | Weight] = {}
        for name, form in zip(node.operands, choice.inputs, strict=True):
            bound[name] = self._reach(name, form, node.origin)
        targets = tuple(
            Value(tensor.name, form)
            for tensor, form in zip(node.outputs, choice.outputs, strict=True)
        )
        args, kwargs = self._arguments(node, choice)
        if node.op == "constant" and 0 in node.outputs[0].shape:
            # Nested lists cannot express the sizes of dims after an empty one.
            node = replace(node, op="aten.zeros.default")
            args = (node.outputs[0].shape,)
        op, args = said_plainly(node, args, choice, self.graph, self.plan.mesh)
        rows = _true_rows(node, self.graph)
        more = ""
        if choice.variant:
            axis = next(a for a, used in enumerate(choice.variants) if used)
            op = f"autopar.{choice.variant}"
            kwargs = (*kwargs, *rows)
            more = f", axis={axis_text(self.plan.mesh, axis)}"
        elif rows:
            op, kwargs = "autopar.padded_embedding", (*kwargs, *rows)
        parts = expression(
            op, args, kwargs, bound, spelled_out=_indexes_by_number(node, self.graph)
        )
        if not bound and op != "constant" and makes_tensors(op):
            more = ", device=self.device"
        if more:
            parts = (*parts[:-1], f"{more})")
        if is_random(node):
            parts = self._per_shard(parts, choice)
        for value in targets:
            self._bound[value] = value
        frees = tuple(Value(*form) for form in self._freed.get(node.name, ()))
        made = Statement(
            targets, parts, self._comment(node), node.origin, frees, is_list=_is_list(op)
        )
        self.statements.append(made)

    def _per_shard(self, parts: tuple[Part, ...], choice: OpSharding) -> tuple[Part, ...]:
        """Wrap a random operator: its numbers differ only along the axes that split its result."""
        mesh = self.plan.mesh
        axes = [
            f", {axis_text(mesh, axis)}"
            for axis in range(len(mesh))
            if mesh.sizes[axis] > 1 and any(isinstance(form[axis], S) for form in choice.outputs)
        ]
        first = parts[0]
        if not axes or not isinstance(first, str):
            return parts
        return (f"per_shard({first.removesuffix('(')}{''.join(axes)})(", *parts[1:])

    def _arguments(self, node: Node, choice: OpSharding) -> Local:
        if node.op == "constant":
            return node.args[:1], (("dtype", DType(node.outputs[0].dtype)),)
        return self.localize(node, choice, self.graph, self.plan.mesh)

    def _comment(self, node: Node) -> str:
        forms = self.plan.choice[node.name].outputs
        described = (
            describe(tensor, form, self.plan.mesh)
            for tensor, form in zip(node.outputs, forms, strict=True)
        )
        return "  ".join(dict.fromkeys(described))

    def _reach(self, name: str, form: Sharding, origin: Origin) -> Value | Weight:
        """Return the tensor in this sharding; add the conversions to it if it does not exist yet."""
        wanted = Value(name, form)
        if wanted not in self._bound:
            conversion = next(c for c in self._steps[name] if c.target == form)
            source = self._reach(name, conversion.source, origin)
            self._convert(conversion, source, wanted, origin)
        return self._bound[wanted]

    def _reduction(self, conversion: Conversion) -> str:
        """Return the `reduce` argument of a conversion that sums gradients.

        It is set for a parameter that is used in a lower precision than it is stored in.
        """
        dtype = reduction_dtype(conversion.tensor, self.graph, self.plan.precision)
        is_sum = conversion.target[conversion.axis] is R
        return f", reduce=torch.{dtype}" if dtype is not None and is_sum else ""

    def _convert(
        self, conversion: Conversion, source: Value | Weight, target: Value, origin: Origin
    ) -> None:
        group = self._group_of.get((conversion.tensor, conversion.source, conversion.target))
        if group is not None:
            self._convert_together(group, origin)
            return
        mesh, axis = self.plan.mesh, conversion.axis
        tensor = self.graph.tensors[conversion.tensor]
        before = conversion.source.local(axis, mesh)
        after = conversion.target.local(axis, mesh)
        verb, _ = conversion.step.collectives(tensor.differentiable) or ("", "")
        more = ", regather=True" if conversion.regather else ""
        more += self._reduction(conversion)
        if (conversion.tensor, conversion.source) in self._reduced:
            more += ", keep=True"
        if conversion.backward:
            more += f", backward={literal(conversion.backward)}"
        text = f", {axis_text(mesh, axis)}, {before}, {after}{more})"
        self._bound[target] = target
        comment = describe(tensor, conversion.target, mesh)
        self.statements.append(Statement((target,), (f"{verb}(", source, text), comment, origin))

    def _convert_together(self, group: Group, origin: Origin) -> None:
        """Convert all weights of a group, which one block uses, where the first of them is used."""
        mesh = self.plan.mesh
        steps = [self._steps[member.tensor][group.hop] for member in group.members]
        targets = tuple(Value(step.tensor, step.target) for step in steps)
        sources = [self._reach(step.tensor, step.source, origin) for step in steps]
        gathers = is_gather(group.members[0].source, group.target)
        verb = "all_gather_together" if gathers else "replicate_together"
        parts: list[Part] = [f"{verb}(\n    {axis_text(mesh, steps[0].axis)}, {group.target},\n"]
        for member, source in zip(group.members, sources, strict=True):
            kept = "regather" if member.regather else "keep"
            parts += ["    (", source, f', {member.source}, "{kept}"),\n']
        parts.append(")" if group.reduce is None else f"    reduce=torch.{group.reduce},\n)")
        self._bound.update({target: target for target in targets})
        forms = (describe(self.graph.tensors[v.tensor], v.form, mesh) for v in targets)
        start: list[Part] = []
        if gathers and all(isinstance(source, Weight) for source in sources):
            start.append(f"start_gather(\n    {axis_text(mesh, steps[0].axis)},\n")
            for member, source in zip(group.members, sources, strict=True):
                start += ["    (", source, f", {member.source}),\n"]
            start.append(")")
        self.statements.append(
            Statement(targets, tuple(parts), "\n".join(forms), origin, gather=tuple(start))
        )


def axis_text(mesh: Mesh, axis: int) -> str:
    """Return how emitted code reads an axis of the mesh: ``self.mesh.x``."""
    name = mesh.names[axis]
    plain = is_attribute(name) and name not in ("by_name", "of")
    return f"self.mesh.{name}" if plain else f"self.mesh[{literal(name)}]"


def _is_list(op: str) -> bool:
    """Return whether the operator returns a list; autopar's functions and constants do not."""
    return "." in op and not op.startswith("autopar.") and returns_list(op)


def _indexes_by_number(node: Node, graph: Graph) -> bool:
    """Return whether an index is a 0-dim tensor, which brackets treat as a number: dims would move."""
    indices = node.operands[1:] if node.op == "aten.index.Tensor" else ()
    return any(not graph.tensors[name].shape for name in indices)


def _true_rows(node: Node, graph: Graph) -> tuple[tuple[str, Arg], ...]:
    """Return `rows` of a padded embedding table, its size in the model: ids must be smaller."""
    if node.op != "aten.embedding.default":
        return ()
    pads = graph.tensors[node.operands[0]].pads
    return tuple(("rows", pad.size) for pad in pads if pad.dim == 0)


def result_forms(plan: Plan, graph: Graph) -> tuple[tuple[str, Sharding], ...]:
    """Return each result with the sharding in which it leaves."""
    return tuple(
        (name, leaving(graph.tensors[name], graph, plan.sharding(graph, name)))
        for name in graph.results
    )


def describe(tensor: Tensor, form: Sharding, mesh: Mesh) -> str:
    """Return a text such as ``[8/x, 16, 96/y of 3] R@z``: sizes and their splits, then other types."""
    dims = []
    for dim, size in enumerate(tensor.shape):
        cuts = "".join(
            f"/{mesh.names[axis]}"
            + (f" of {form.local(axis, mesh).of}" if _of(form, axis, mesh) > 1 else "")  # type: ignore[union-attr]
            for _, axis in form.cuts(dim)
        )
        dims.append(f"{size}{cuts}")
    letters = [
        f"{kind}@{mesh.names[axis]}"
        for axis, kind in enumerate(form)
        if kind in (R, I, P) and mesh.sizes[axis] > 1
    ]
    return " ".join([f"[{', '.join(dims)}]", *letters])


def _of(form: Sharding, axis: int, mesh: Mesh) -> int:
    kind = form.local(axis, mesh)
    return kind.of if isinstance(kind, S) else 1
