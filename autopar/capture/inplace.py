"""Analyses in-place operators: which tensors see a write, and which value each of them has afterwards.

Tracing ran on fake tensors with real storages, so it is exactly known which tensors share memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from autopar.capture import _torch
from autopar.capture.views import parent_of
from autopar.capture.where import location, origin_of
from autopar.errors import CaptureError

GEOMETRY = {"squeeze_", "unsqueeze_", "t_", "transpose_", "swapaxes_", "swapdims_", "detach_"}
"""Operators that change the metadata of a tensor object and write no values."""


def functional_form(op: str) -> str:
    """Return ``aten.add.Tensor`` for ``aten.add_.Tensor``, ``aten.__or__`` for ``aten.__ior__``."""
    namespace, name, overload = op.split(".")
    if name.startswith("__i") and name.endswith("__"):
        return f"{namespace}.__{name[3:]}.{overload}"
    return f"{namespace}.{name.removesuffix('_')}.{overload}"


def changes_only_geometry(op: str) -> bool:
    """Return whether an in-place operator writes no values."""
    return op.split(".")[1] in GEOMETRY


def written(node: fx.Node, overload: Any) -> fx.Node | None:
    """Return the tensor that an operator writes to, or None; refuse writes to several."""
    found: list[fx.Node] = []
    for position, name in _torch.writes_to(overload):
        given = node.args[position] if position < len(node.args) else node.kwargs.get(name)
        found += given if isinstance(given, (tuple, list)) else [given]  # type: ignore[list-item]
    found = [item for item in found if isinstance(item, fx.Node)]
    if len(found) > 1:
        raise CaptureError(
            f"{overload} at {location(origin_of(node))}\nwrites into several tensors at once. Use "
            "operators that return new tensors."
        )
    return found[0] if found else None


@dataclass(frozen=True)
class Write:
    """The tensors that a write changes.

    Each link of `chain` is a view of the next; the last one is the root. `same[i]` are the nodes
    with the storage and geometry of link i, the link included.
    """

    chain: tuple[fx.Node, ...]
    same: tuple[tuple[fx.Node, ...], ...]


class Memory:
    """Which fx nodes share a storage, and where each of them is read."""

    def __init__(self, nodes: Sequence[fx.Node]) -> None:
        self.index = {node: position for position, node in enumerate(nodes)}
        self.sharing: dict[int, list[fx.Node]] = defaultdict(list)
        for node in nodes:
            if _torch.has_storage(node.meta.get("val")):
                self.sharing[_torch.storage_id(node.meta["val"])].append(node)

    def write(self, moment: fx.Node, target: fx.Node) -> Write:
        """Return the tensors that the write of the node `moment` to `target` changes.

        Raise `CaptureError` if a view outside the chain, read later or owned by a leaf, would
        change as well.
        """
        aliases = [node for node in self._aliases(target) if self.index[node] < self.index[moment]]
        shapes = [_geometry(node) for node in aliases]
        chain = [target]
        parent = parent_of(target)
        while parent is not None and parent in aliases:
            chain.append(parent)
            parent = parent_of(parent)
        links = [_geometry(link) for link in chain]
        unseen = [n for n, shape in zip(aliases, shapes, strict=True) if shape not in links]
        for other in unseen:
            reader = self._read_after(other, moment)
            if reader is not None or other.op == "placeholder":
                raise _visible(moment, other, reader)
        return Write(tuple(chain), tuple(self._same(aliases, shapes, link) for link in links))

    def _same(
        self, aliases: list[fx.Node], shapes: list[tuple[object, ...]], link: tuple[object, ...]
    ) -> tuple[fx.Node, ...]:
        return tuple(n for n, shape in zip(aliases, shapes, strict=True) if shape == link)

    def _aliases(self, node: fx.Node) -> list[fx.Node]:
        return self.sharing[_torch.storage_id(node.meta["val"])]

    def read_after(self, node: fx.Node, moment: fx.Node) -> bool:
        """Return whether a node is read after `moment`."""
        return self._read_after(node, moment) is not None

    def _read_after(self, node: fx.Node, moment: fx.Node) -> fx.Node | None:
        later = [user for user in node.users if self.index[user] > self.index[moment]]
        return min(later, key=self.index.__getitem__, default=None)


def _visible(moment: fx.Node, other: fx.Node, reader: fx.Node | None) -> CaptureError:
    seen = f"read again at {location(origin_of(reader))}" if reader else "kept by its owner"
    return CaptureError(
        f"{moment.target} at {location(origin_of(moment))}\nwrites into memory that a tensor of "
        f"shape {tuple(other.meta['val'].shape)} shares, which is {seen}\nCompute a new tensor "
        "instead (torch.cat, torch.where, torch.index_put), or write to a .clone()."
    )


def _geometry(node: fx.Node) -> tuple[object, ...]:
    value: torch.Tensor = node.meta["val"]
    return tuple(value.shape), value.stride(), value.storage_offset(), value.dtype
