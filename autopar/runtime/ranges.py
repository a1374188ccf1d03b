"""Range checks of ids and labels against the true number of rows or classes, as in one process.

If rows or classes are sharded or padded, no kernel sees the true size: an id outside of this rank's part
looks like another rank's, and a padded row like the model's.  So the true size is checked here.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from autopar.runtime import _torch


def check_range(numbers: torch.Tensor, size: int, what: str, ignored: int | None = None) -> None:
    """Raise `IndexError` unless all numbers are in [0, size) or `ignored`; `what` names them.

    On a GPU this does not synchronise: as in torch's own kernels, an assertion on the device fails.
    """
    if numbers.is_meta:
        return
    outside = (numbers < 0) | (numbers >= size)
    if ignored is not None:
        outside &= numbers != ignored
    valid = f"valid are 0 ... {size - 1}" + ("" if ignored is None else f" and {ignored} (ignored)")
    if numbers.device.type != "cpu" or torch.compiler.is_compiling():
        _torch.assert_async(~outside.any(), f"{what} is out of range; {valid}.")
    elif outside.any():
        wrong = int(numbers[outside][0])
        raise IndexError(f"{what} {wrong} is out of range; {valid}.")


def padded_embedding(
    weight: torch.Tensor, indices: torch.Tensor, padding_idx: int = -1, *_: Any, rows: int
) -> torch.Tensor:
    """`F.embedding` of a table whose rows after the first `rows` are padding."""
    check_range(indices, rows, f"padded_embedding (table of shape {[rows, *weight.shape[1:]]}): id")
    return F.embedding(indices, weight, padding_idx if padding_idx >= 0 else None)
