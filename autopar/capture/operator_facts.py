"""Measures what autograd saves of one operator for the backward, by running it on fake tensors.

The run shows the CPU's kernels. Where a GPU's kernel saves something else, `ELSEWHERE` names an
operator that saves the same. For example, the GPU's fused dropout saves a mask of one byte per
element, the CPU's dropout the factors themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from autopar.capture import _torch
from autopar.capture.within import Made, checks_values, within
from autopar.capture.workspace import workspace_nbytes
from autopar.ir.graph import Node, Saved, Tensor, short
from autopar.ops.operators import bind, callable_of, dear_kernels

ELSEWHERE = {("cuda", "aten.dropout.default"): "aten.native_dropout.default"}
"""The operator to run instead, by kind of device and operator."""
REDUCED_IN_PLACE = frozenset(
    ["binary_cross_entropy", "mse_loss", "smooth_l1_loss", "soft_margin_loss"]
)
"""Losses whose kernels reduce all terms into the first one.

The result is a scalar in a storage of the size of all terms, which no fake tensor shows.
"""
Layout = Callable[[torch.Tensor], torch.Tensor]
"""Gives a tensor the strides under which an operator is measured."""
Strides = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OperatorFacts:
    """What is measured of an operator: what it saves, and the memory layout of its results."""

    saved: Saved
    strides: tuple[Strides | None, ...]
    """Of each output; None means row-major order."""


def flows(node: Node) -> bool:
    """Return whether the node has a backward."""
    return any(tensor.differentiable for tensor in node.outputs)


def ask(
    node: Node,
    operands: Mapping[str, Tensor],
    strides: Mapping[str, Strides | None],
    arriving: Sequence[int],
    kind: str,
) -> OperatorFacts:
    """Return what a node saves on a kind of device, for operands with these strides.

    `arriving`: the outputs at which gradients arrive.
    """
    node = replace(node, op=ELSEWHERE.get((kind, node.op), node.op))
    call = _Call(node, operands, strides)
    asked = call.kept()
    if not flows(node):
        return asked
    made = call.within(arriving)
    unseen = workspace_nbytes(node, operands) if kind == "cpu" else 0
    found = replace(
        asked.saved,
        extra_nbytes=asked.saved.extra_nbytes + unseen,
        forward_nbytes=made.forward_nbytes,
        backward_nbytes=made.backward_nbytes,
        early_nbytes=made.early_nbytes,
        passes=made.passes,
        views=tuple(place for place, is_view in enumerate(made.views) if is_view),
    )
    if any(len(tensor.shape) > 1 for tensor in operands.values()):
        found = replace(found, copied=call.copied())
    return replace(asked, saved=found)


@dataclass(frozen=True)
class _Call:
    """A call of an operator on fake tensors."""

    node: Node
    operands: Mapping[str, Tensor]
    strides: Mapping[str, Strides | None]

    def kept(self, lay: Layout | None = None) -> OperatorFacts:
        """Return what the forward saves; operands are laid out as in the graph, or by `lay`."""
        node, kept, dear = self.node, _Storages(), _Dear()
        hooks = torch.autograd.graph.saved_tensors_hooks(kept.add, lambda packed: packed)
        with _torch.fake_mode(), torch.set_grad_enabled(flows(node)):
            tensors = self._tensors(lay)
            with hooks, dear:
                result = self.run(tensors)
            made = list(result) if isinstance(result, (tuple, list)) else [result]
            # Further results of an operator of `ELSEWHERE` count as saved.
            outputs = made[: len(node.outputs)]
            given = [tensors[name] for name in node.operands]
            shares = _sharing(outputs, given)
            strides = tuple(map(_strides, outputs))
            saved = Saved(
                kept.take(given),
                kept.take(outputs),
                kept.nbytes,
                kept.like(given),
                shares=shares,
                spare=_terms(node, outputs, given) or _spare(outputs, shares),
                cached=dear.storages.take(outputs),
                cached_nbytes=dear.storages.nbytes,
                turned=tuple(place for place, turned in enumerate(strides) if turned),
            )
            return OperatorFacts(saved, strides)

    def copied(self) -> tuple[int, ...]:
        """Return the operands that are saved as copies if they are not in row-major order."""
        layouts = [_turned]
        if short(self.node.op) == "scaled_dot_product_attention":
            layouts.append(_heads_behind)
        places = self.kept(_in_order).saved.operands
        still = set(places)
        for lay in layouts if places else ():
            try:
                still &= set(self.kept(lay).saved.operands)
            except RuntimeError:  # the operator needs a view that these strides do not allow
                still = set()
        return tuple(place for place in places if place not in still)

    def within(self, arriving: Sequence[int]) -> Made:
        """Return the temporary storage, and for each operand how its gradient is stored."""
        names = list(self.operands)
        # Planning may run under no_grad, where a view of a leaf would have no history.
        with _torch.fake_mode(), torch.enable_grad():
            tensors = self._tensors()
            leaves = [(name, tensors[name]) for name in names if tensors[name].requires_grad]
            differentiable = [x for _, x in leaves]
            results = len(self.node.outputs)
            made = within(lambda: self.run(tensors), differentiable, results, arriving)
        names = [name for name, _ in leaves]
        passes = dict(zip(names, made.passes, strict=True))
        views = dict(zip(names, made.views, strict=True))
        return replace(
            made,
            passes=tuple(passes.get(name) for name in self.node.operands),
            views=tuple(views.get(name, False) for name in self.node.operands),
        )

    def run(self, tensors: Mapping[str, torch.Tensor]) -> Any:
        """Return the operator's results."""
        args = bind(self.node.args, tensors.__getitem__)
        kwargs = {key: bind(value, tensors.__getitem__) for key, value in self.node.kwargs}
        return callable_of(self.node.op)(*args, **kwargs)

    def _tensors(self, lay: Layout | None = None) -> dict[str, torch.Tensor]:
        leads_back = flows(self.node)
        return {
            name: _fake(tensor, self.strides[name], lay, leads_back)
            for name, tensor in self.operands.items()
        }


class _Storages:
    """A set of storages with their sizes; each storage counts once."""

    def __init__(self) -> None:
        self._nbytes: dict[int, int] = {}
        # Keeps tensors alive: the id of a freed storage could be reused.
        self._alive: dict[int, torch.Tensor] = {}

    def add(self, tensor: torch.Tensor) -> None:
        """Add the storage of a tensor."""
        key = _torch.storage_id(tensor)
        self._alive.setdefault(key, tensor)
        self._nbytes[key] = tensor.untyped_storage().nbytes()

    def take(self, tensors: Iterable[Any]) -> tuple[int, ...]:
        """Remove the storages of these tensors, and return the positions of the tensors found."""
        found = []
        for place, tensor in enumerate(tensors):
            if isinstance(tensor, torch.Tensor) and _torch.storage_id(tensor) in self._nbytes:
                del self._nbytes[_torch.storage_id(tensor)]
                found.append(place)
        return tuple(found)

    def like(self, tensors: Sequence[torch.Tensor]) -> tuple[tuple[int, int], ...]:
        """Return (position, bytes) for each remaining storage that is like one of the tensors.

        A mask in another dtype has the tensor's shape, and a copy may be laid out as a matrix of
        the same size. Statistics that happen to have as many rows as a bias has entries do not
        count.
        """
        backwards = [*enumerate(tensors)][::-1]
        shaped = {x.shape: place for place, x in backwards}
        sized = {x.numel() * x.itemsize: place for place, x in backwards if x.dim() > 1}
        found = (
            (shaped.get(self._alive[key].shape, sized.get(nbytes)), nbytes)
            for key, nbytes in self._nbytes.items()
        )
        return tuple((place, nbytes) for place, nbytes in found if place is not None)

    @property
    def nbytes(self) -> int:
        """Bytes of the remaining storages."""
        return sum(self._nbytes.values())


class _Dear(_torch.TorchDispatchMode):
    """Records the results that selective recomputation keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.storages = _Storages()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if checks_values(func):
            return False
        result = func(*args, **(kwargs or {}))
        if func in dear_kernels():
            for tensor in _torch.tree_leaves(result):
                if isinstance(tensor, torch.Tensor):
                    self.storages.add(tensor)
        return result


def _sharing(outputs: Iterable[Any], operands: list[torch.Tensor]) -> tuple[int | None, ...]:
    """Return for each output the operand whose storage it shares."""
    storage = {_torch.storage_id(x): place for place, x in reversed([*enumerate(operands)])}
    return tuple(
        storage.get(_torch.storage_id(x)) if isinstance(x, torch.Tensor) else None for x in outputs
    )


def _spare(outputs: list[Any], shares: tuple[int | None, ...]) -> tuple[int, ...]:
    """Return for each output the bytes of its own storage beyond its elements; empty if all are 0."""
    found = tuple(
        max(0, x.untyped_storage().nbytes() - x.numel() * x.itemsize)
        if isinstance(x, torch.Tensor) and place is None
        else 0
        for x, place in zip(outputs, shares, strict=True)
    )
    return found if any(found) else ()


def _terms(node: Node, outputs: list[Any], operands: list[torch.Tensor]) -> tuple[int, ...]:
    """Return the bytes of a loss's terms besides the loss, if they share its storage."""
    if short(node.op) not in REDUCED_IN_PLACE or outputs[0].dim():
        return ()
    shape = torch.broadcast_shapes(*(x.shape for x in operands[:2]))
    return ((math.prod(shape) - 1) * outputs[0].itemsize,)


def _in_order(x: torch.Tensor) -> torch.Tensor:
    return x


def _heads_behind(x: torch.Tensor) -> torch.Tensor:
    """Lay out heads after positions, the usual layout of attention's operands.

    Without a fused kernel, as under a mask with a gradient, attention saves copies of such
    operands. A plan must then not count on freeing a gathered operand.
    """
    return x.transpose(1, 2).contiguous().transpose(1, 2) if x.dim() == 4 else x


def _turned(x: torch.Tensor) -> torch.Tensor:
    """Make the first dim the innermost in memory."""
    return x.movedim(0, -1).contiguous().movedim(-1, 0) if x.dim() > 1 else x


def _strides(tensor: Any) -> Strides | None:
    turned = isinstance(tensor, torch.Tensor) and not tensor.is_contiguous()
    return tuple(tensor.stride()) if turned else None


def _fake(
    tensor: Tensor, strides: Strides | None, lay: Layout | None, leads_back: bool
) -> torch.Tensor:
    dtype = getattr(torch, tensor.dtype)
    if lay is None and strides is not None:
        made = torch.empty_strided(tensor.shape, strides, dtype=dtype)
    else:
        made = (lay or _in_order)(torch.empty(tensor.shape, dtype=dtype))
    number = dtype.is_floating_point or dtype.is_complex
    leaf = made.requires_grad_(leads_back and tensor.differentiable and number)
    # An operator may change a view of a leaf in place, but not a leaf that requires a gradient.
    return leaf.view_as(leaf) if leaf.requires_grad else leaf
