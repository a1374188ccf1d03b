"""In-place operators: who can see the write, and the same operator out of place.

Tracing ran on fake tensors with real storages, so who shares memory with whom is known exactly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx

from autopar.capture import _torch
from autopar.capture.where import origin_of, spoken
from autopar.errors import CaptureError
from autopar.graph import Origin

GEOMETRY = {"squeeze_", "unsqueeze_", "t_", "transpose_", "swapaxes_", "swapdims_", "detach_"}
"""They change how one tensor object sees its memory, and write nothing."""


@dataclass(frozen=True)
class Functional:
    """The out-of-place operator, and whether only geometry changes."""

    op: str
    only_geometry: bool


def functional_form(op: str) -> Functional:
    """``aten.add.Tensor`` for ``aten.add_.Tensor``."""
    namespace, name, overload = op.split(".")
    return Functional(f"{namespace}.{name.removesuffix('_')}.{overload}", name in GEOMETRY)


class Memory:
    """Which fx nodes share storage, and where each is last read."""

    def __init__(self, nodes: Sequence[fx.Node]) -> None:
        self.index = {node: position for position, node in enumerate(nodes)}
        self.sharing: dict[int, list[fx.Node]] = defaultdict(list)
        for node in nodes:
            if _torch.has_storage(node.meta.get("val")):
                self.sharing[_torch.storage_id(node.meta["val"])].append(node)

    def aliases(self, node: fx.Node) -> list[fx.Node]:
        """Values made before or after that share this node's memory, itself included."""
        return self.sharing[_torch.storage_id(node.meta["val"])]

    def read_after(self, node: fx.Node, moment: fx.Node) -> fx.Node | None:
        """The first reader of a node behind a moment."""
        later = [user for user in node.users if self.index[user] > self.index[moment]]
        return min(later, key=self.index.__getitem__, default=None)


def refuse_visible(
    memory: Memory, write: fx.Node, written: fx.Node, op: str, place: Origin
) -> list[fx.Node]:
    """The nodes that are the written tensor itself; refused if another view of it is read later."""
    same: list[fx.Node] = []
    for other in memory.aliases(written):
        if memory.index[other] >= memory.index[write]:
            continue
        if _geometry(other.meta["val"]) == _geometry(written.meta["val"]):
            same.append(other)
            continue
        reader = memory.read_after(other, write)
        if reader is not None or other.op == "placeholder":
            seen = spoken(origin_of(reader)) if reader else "its owner"
            raise CaptureError(
                f"{op} at {spoken(place)}\nwrites into a view of a tensor of shape "
                f"{tuple(other.meta['val'].shape)} that is read again at {seen}\nCompute a "
                "new tensor "
                "instead (torch.cat, torch.where, torch.index_put, torch.slice_scatter), or "
                "write to a "
                ".clone()."
            )
    return same


def _geometry(value: torch.Tensor) -> tuple[object, ...]:
    return tuple(value.shape), value.stride(), value.storage_offset(), value.dtype
