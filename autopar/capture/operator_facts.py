"""What autograd keeps of one operator for the backward, measured by running it on fake tensors.

The run shows the CPU's kernels.  Where a GPU's keeps something else, `ELSEWHERE` has an operator that
keeps the same: its fused dropout keeps a mask of one byte per element, the CPU's the factors themselves.
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
"""By kind of device and operator."""
REDUCED_IN_PLACE = frozenset(
    ["binary_cross_entropy", "mse_loss", "smooth_l1_loss", "soft_margin_loss"]
)
"""Losses whose kernels reduce all terms into the first: the number that comes out lies in memory for all
of them, which no fake tensor shows."""
Layout = Callable[[torch.Tensor], torch.Tensor]
"""Gives a tensor the strides under which an operator is looked at."""
Strides = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OperatorFacts:
    """What is known of an operator: what it keeps, and how its results lie in memory."""

    saved: Saved
    strides: tuple[Strides | None, ...]
    """None: in row-major order."""


def flows(node: Node) -> bool:
    """Whether there is a backward."""
    return any(tensor.differentiable for tensor in node.outputs)


def ask(
    node: Node,
    operands: Mapping[str, Tensor],
    strides: Mapping[str, Strides | None],
    arriving: Sequence[int],
    kind: str,
) -> OperatorFacts:
    """What it keeps of operands with these strides, on a kind of device.

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
    """An operator on fake tensors."""

    node: Node
    operands: Mapping[str, Tensor]
    strides: Mapping[str, Strides | None]

    def kept(self, lay: Layout | None = None) -> OperatorFacts:
        """What the forward keeps, of operands that lie as the graph has them, or so."""
        node, kept, dear = self.node, _Storages(), _Dear()
        hooks = torch.autograd.graph.saved_tensors_hooks(kept.add, lambda packed: packed)
        with _torch.fake_mode(), torch.set_grad_enabled(flows(node)):
            tensors = self._tensors(lay)
            with hooks, dear:
                result = self.run(tensors)
            made = list(result) if isinstance(result, (tuple, list)) else [result]
            # What an operator of `ELSEWHERE` makes besides its results is kept.
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
        """The operands that are kept in row-major order, but as copies where they lie otherwise."""
        layouts = [_turned]
        if short(self.node.op) == "scaled_dot_product_attention":
            layouts.append(_heads_behind)
        places = self.kept(_in_order).saved.operands
        still = set(places)
        for lay in layouts if places else ():
            try:
                still &= set(self.kept(lay).saved.operands)
            except RuntimeError:  # a view that such strides do not have
                still = set()
        return tuple(place for place in places if place not in still)

    def within(self, arriving: Sequence[int]) -> Made:
        """What is made besides, and where gradients lie, by operand."""
        names = list(self.operands)
        # A plan may be made under no_grad, where a view of a leaf would have no way back to it.
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
        """The operator's results."""
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
    """Memory that somebody holds, each storage once."""

    def __init__(self) -> None:
        self._nbytes: dict[int, int] = {}
        # A freed storage's id would be the next one's, too.
        self._alive: dict[int, torch.Tensor] = {}

    def add(self, tensor: torch.Tensor) -> None:
        """Hold what a tensor lies in."""
        key = _torch.storage_id(tensor)
        self._alive.setdefault(key, tensor)
        self._nbytes[key] = tensor.untyped_storage().nbytes()

    def take(self, tensors: Iterable[Any]) -> tuple[int, ...]:
        """Places of the tensors whose storage is held; each is taken out when it is found."""
        found = []
        for place, tensor in enumerate(tensors):
            if isinstance(tensor, torch.Tensor) and _torch.storage_id(tensor) in self._nbytes:
                del self._nbytes[_torch.storage_id(tensor)]
                found.append(place)
        return tuple(found)

    def like(self, tensors: Sequence[torch.Tensor]) -> tuple[tuple[int, int], ...]:
        """Of what was not taken out: bytes of what is as one of the tensors, and of which.

        A mask in another dtype has the tensor's shape, a copy may be laid out as a matrix; statistics
        of as many rows as a bias has entries are neither.
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
        """Of what was not taken out."""
        return sum(self._nbytes.values())


class _Dear(_torch.TorchDispatchMode):
    """Notes the results that selective recomputation keeps."""

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
    """Of each output, the operand in whose storage it lies."""
    storage = {_torch.storage_id(x): place for place, x in reversed([*enumerate(operands)])}
    return tuple(
        storage.get(_torch.storage_id(x)) if isinstance(x, torch.Tensor) else None for x in outputs
    )


def _spare(outputs: list[Any], shares: tuple[int | None, ...]) -> tuple[int, ...]:
    """Of each output, bytes of its own storage besides its elements; nothing where there are none."""
    found = tuple(
        max(0, x.untyped_storage().nbytes() - x.numel() * x.itemsize)
        if isinstance(x, torch.Tensor) and place is None
        else 0
        for x, place in zip(outputs, shares, strict=True)
    )
    return found if any(found) else ()


def _terms(node: Node, outputs: list[Any], operands: list[torch.Tensor]) -> tuple[int, ...]:
    """Bytes of a loss's terms besides itself, where it lies among them."""
    if short(node.op) not in REDUCED_IN_PLACE or outputs[0].dim():
        return ()
    shape = torch.broadcast_shapes(*(x.shape for x in operands[:2]))
    return ((math.prod(shape) - 1) * outputs[0].itemsize,)


def _in_order(x: torch.Tensor) -> torch.Tensor:
    return x


def _heads_behind(x: torch.Tensor) -> torch.Tensor:
    """Heads lie behind positions, as attention mostly gets them.

    Without a fused kernel, as under a mask with a gradient, it saves copies of such operands: gathers
    of them must not be promised to be forgotten.
    """
    return x.transpose(1, 2).contiguous().transpose(1, 2) if x.dim() == 4 else x


def _turned(x: torch.Tensor) -> torch.Tensor:
    """The first dim lies innermost."""
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
    # A view of a leaf may be changed in place; a leaf that needs a gradient may not.
    return leaf.view_as(leaf) if leaf.requires_grad else leaf
