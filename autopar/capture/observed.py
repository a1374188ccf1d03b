"""Observes side effects of a function of fake tensors: random numbers, writes, communication."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from autopar.capture import _torch


class Observed(_torch.TorchDispatchMode):
    """Records what operators do while a function of fake tensors runs.

    `draws`: whether random numbers were drawn. `writes`: the operator that wrote into `operands`.
    `foreign`: the operator that read a tensor which is neither an operand nor made inside. `sends`:
    the operator that communicated. The last three are empty if there was none.
    """

    def __init__(self, operands: Iterable[Any]) -> None:
        super().__init__()
        self.draws, self.writes, self.foreign, self.sends = False, "", "", ""
        self._given = {_torch.storage_id(x) for x in operands if isinstance(x, torch.Tensor)}
        self._made: dict[int, torch.Tensor] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        self.draws |= torch.Tag.nondeterministic_seeded in func.tags
        if func.namespace in _torch.COMMUNICATES:
            self.sends = str(func)
        written = [
            args[at] if at < len(args) else kwargs.get(name) for at, name in _torch.writes_to(func)
        ]
        for tensor in _torch.tree_leaves(written):
            if isinstance(tensor, torch.Tensor) and _torch.storage_id(tensor) in self._given:
                self.writes = str(func)
        for tensor in _torch.tree_leaves((args, kwargs)):
            known = not isinstance(tensor, torch.Tensor) or (
                _torch.storage_id(tensor) in self._given or _torch.storage_id(tensor) in self._made
            )
            if not known and (_torch.is_fake(tensor) or tensor.requires_grad or tensor.is_meta):
                self.foreign = str(func)
        result = func(*args, **kwargs)
        for tensor in _torch.tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._made[_torch.storage_id(tensor)] = tensor
        return result
