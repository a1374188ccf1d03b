"""The norm of a pipeline's gradients, over all stages."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from autopar.ir.mesh import Mesh
from autopar.runtime.axes import Axes
from autopar.runtime.clip import gradients, total_norm
from autopar.runtime.pipeline.built import Built
from autopar.runtime.sharded_parameter import ShardedParameter


def norm_over_stages(
    owned: Sequence[ShardedParameter],
    mesh: Mesh,
    axes: Axes,
    built: Built,
    norm_type: float,
    contributes: bool,
) -> torch.Tensor:
    """Return the norm over all stages' gradients, equal on all ranks.

    `owned`: the parameters that this worker counts.  `contributes`: whether this rank adds its worker's
    share to the sum.
    """
    mine = total_norm(gradients(owned), mesh, axes, norm_type)
    part = torch.zeros((), dtype=torch.float64, device=axes.device)
    if contributes:
        part += mine.double().to(axes.device)
    if norm_type == float("inf"):
        dist.all_reduce(part, op=dist.ReduceOp.MAX)
    else:
        part = part**norm_type
        dist.all_reduce(part)
        part = part ** (1.0 / norm_type)
    # Over all stages: a rank may have no gradients, and the norm's dtype must be equal on all.
    leaves = [node for graph in built.stages.graphs for node in graph.leaves("parameter")]
    wide = any(node.outputs[0].dtype == "float64" for node in leaves)
    return part.to(torch.float64 if wide else torch.float32)
