"""Base class of emitted modules: a view of the parameters below one module path.

Emitted modules own no tensors.  The runtime keeps one tree of tensors under the user's names, and a
module looks names up in that tree: ``self.attn.c_attn.weight``, ``self.h[0]``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal, TypeVar

import torch

from autopar.errors import SourceError
from autopar.runtime import recompute, regather
from autopar.runtime.ahead import Ahead, one_ahead
from autopar.runtime.axes import Axes
from autopar.runtime.constants import Constants
from autopar.runtime.kernels import Started

M = TypeVar("M", bound="Module")


class Namespace:
    """One level of the tree of names; numbered children are accessed by index."""

    def __init__(self, path: str = "", axes: Axes | None = None) -> None:
        """`axes`: of the mesh, at the root of the tree."""
        self._path, self._axes, self._constants = path, axes, Constants()
        self._children: dict[str, Namespace | torch.Tensor] = {}

    def put(self, name: str, tensor: torch.Tensor) -> None:
        """Set a tensor under a dotted name."""
        head, _, rest = name.partition(".")
        if not rest:
            self._children[head] = tensor
            return
        child = self._children.setdefault(head, Namespace(f"{self._path}{head}."))
        if not isinstance(child, Namespace):
            raise SourceError(f"{self._path}{head} is a tensor and has no part {rest!r}.")
        child.put(rest, tensor)

    def at(self, path: str) -> Namespace:
        """Return the namespace below a dotted path; empty for a module without tensors."""
        here: Namespace | torch.Tensor = self
        for name in filter(None, path.split(".")):
            if not isinstance(here, Namespace):
                break
            here = here._children.get(name, Namespace(f"{here._path}{name}."))
        if not isinstance(here, Namespace):
            raise SourceError(f"{self._path}{path} is a tensor, not a module.")
        return here

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, key: int | str) -> Any:
        """Return a child by its number, or by a name of any form."""
        try:
            return self._children[str(key)]
        except KeyError:
            raise SourceError(
                f"The model has no parameter, buffer or module {self._path}{key}; there are "
                f"{', '.join(self._children)}."
            ) from None


def path_of(module: Module) -> str:
    """Return the user's name of a module; "" for the model itself."""
    return module._here._path.removesuffix(".")


class Module:
    """A module of the emitted model, at a path in the tree of parameters.

    It has the axes of the mesh by name (``self.mesh.x``), and the `device` for tensors that it makes.
    """

    _here: Namespace
    _constants: Constants
    recompute: ClassVar[Literal["none", "selective", "full"]] = "none"
    """Recomputation of the block in the backward: of nothing, of selected operators, or in full."""
    ahead: Ahead | None = None
    """The gather of the block's weights, if it may start before the block runs."""
    _compiled: ClassVar[bool] = False
    """Whether the forward is compiled by `torch.compile`, and so has no profiler spans."""

    def __init__(self, parent: Module | Namespace, path: str = "") -> None:
        tree = parent._here if isinstance(parent, Module) else parent
        self._here = tree.at(path)
        mesh = parent.mesh if isinstance(parent, Module) else parent._axes
        self._constants = parent._constants
        self.mesh: Any = mesh
        self.device = torch.device("cpu" if mesh is None else mesh.device)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_here":
            raise AttributeError(name)
        return getattr(self._here, name)

    def __getitem__(self, key: int | str) -> Any:
        return self._here[key]

    def constant(self, values: Any, dtype: torch.dtype) -> torch.Tensor:
        """Return a constant tensor on the device: of nested lists, or of a number."""
        return self._constants.of(values, dtype, self.device)

    def each(
        self, block: type[M], prefix: str, indices: range, prefetch: bool = False
    ) -> Iterator[M]:
        """Yield one `block` per numbered child: ``transformer.h.0``, ``transformer.h.1`` ...

        With `prefetch`, the weights of the next block are gathered while a block runs.
        """
        blocks = (block(self, f"{prefix}.{index}") for index in indices)
        return one_ahead(list(blocks)) if prefetch and not block._compiled else blocks

    def gather(self) -> Started:
        """Start to gather the weights of the block."""
        raise SourceError(f"{type(self).__name__} defines no gather, which is to run ahead of it.")

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The emitted computation."""
        raise SourceError(f"{type(self).__name__} defines no forward.")

    def __call__(self, *args: Any) -> Any:
        if self._compiled:  # recomputes and gathers again within its graph
            return self.forward(*args)
        with regather.scope() as leaving:
            if self.recompute == "none":
                return leaving(self.forward(*args))
            return leaving(recompute.run(self.forward, self.recompute, args, self.ahead))
