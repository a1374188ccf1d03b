"""Loss scaling for float16 on sharded gradients: if one rank finds an overflow, all skip the step."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch.amp.grad_scaler import OptState
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.tensor import DTensor

from autopar.runtime import _torch


class GradScaler(ShardedGradScaler):
    """`torch.amp.GradScaler`, used the same way.

    An overflow in one rank's shard is found by all: FSDP's scaler sums the results of `unscale_` over
    all ranks.  Fused optimizers would unscale on each rank separately, so here they are stepped like all
    others.
    """

    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: torch.Tensor,
        found_inf: torch.Tensor,
        allow_fp16: bool = True,
    ) -> dict[torch.device, torch.Tensor]:
        """Unscale this rank's shards.

        DTensor's own implementation would reduce `found_inf` by the layout of the first gradient.
        """
        by_dtype: defaultdict[torch.dtype, list[torch.Tensor]] = defaultdict(list)
        for group in optimizer.param_groups:
            for gradient in (p.grad for p in group["params"] if p.grad is not None):
                local = _torch.local_of(gradient) if isinstance(gradient, DTensor) else gradient
                by_dtype[local.dtype].append(local)
        for gradients in by_dtype.values():
            _torch.unscale(gradients, found_inf, inv_scale)
        return {found_inf.device: found_inf}

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Step the optimizer, on all ranks or on none."""
        if not self.is_enabled():
            return optimizer.step(*args, **kwargs)  # type: ignore[no-any-return]
        if "closure" in kwargs:
            raise RuntimeError("A scaled step takes no closure.")
        self._check_scale_growth_tracker("step")
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.STEPPED:
            raise RuntimeError("step() has already been called since the last update().")
        if state["stage"] is OptState.READY:
            self.unscale_(optimizer)
        result = self._maybe_opt_step(optimizer, state, *args, **kwargs)
        state["stage"] = OptState.STEPPED
        return result
