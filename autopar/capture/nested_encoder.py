"""Refuses evaluations of `nn.TransformerEncoder` in which PyTorch returns zeros for padding.

Without gradients it computes on nested tensors, which have no padded rows, if the padding is at the end
of every sequence.  A graph, which does not depend on the mask's values, computes these rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn

from autopar.errors import CaptureError

REFUSED = (
    "In evaluation nn.TransformerEncoder returns zeros for padded positions if the padding given as "
    "src_key_padding_mask is at the end (PyTorch's nested tensors), and values that depend on the "
    "other positions if not. A graph cannot do both. Build it with nn.TransformerEncoder(..., "
    "enable_nested_tensor=False), or set encoder.use_nested_tensor = False, before "
    "autopar.parallelize: all other positions stay the same."
)


@contextmanager
def nested_encoders_refused(train: bool) -> Iterator[None]:
    """Within the context, raise `CaptureError` where an encoder would use nested tensors."""
    standing = nn.TransformerEncoder.forward

    def forward(
        self: nn.TransformerEncoder,
        src: torch.Tensor,
        mask: torch.Tensor | None = None,
        src_key_padding_mask: torch.Tensor | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        if src_key_padding_mask is not None and not train and _nests(self):
            raise CaptureError(REFUSED)
        made: torch.Tensor = standing(self, src, mask, src_key_padding_mask, *args, **kwargs)
        return made

    with mock.patch.object(nn.TransformerEncoder, "forward", forward):
        yield


def _nests(encoder: nn.TransformerEncoder) -> bool:
    return (
        bool(getattr(encoder, "use_nested_tensor", False))
        and not encoder.layers[0].training
        and torch.backends.mha.get_fastpath_enabled()
        and not torch.is_autocast_enabled()
    )
