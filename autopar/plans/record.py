"""Records that a plan keeps in addition to its decisions: the request, the search and the splits."""

from __future__ import annotations

from dataclasses import dataclass

from autopar.ir.blocks import Recompute
from autopar.ir.mesh import Mesh
from autopar.ir.pads import Pad
from autopar.plans.texts import ShardingText
from autopar.request.constraints import Constraint
from autopar.request.optimizers import Reads


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The request of a plan besides model, mesh and preset; together they reproduce its problem.

    `states` is the number of optimizer tensors of each parameter's size.  `batch` is the sharding of
    inputs that hold only a rank's part of the batch; None: inputs arrive whole.  `kept`: parameters had
    to keep the shardings of an earlier plan.  `recompute` lists the allowed recomputation modes, and
    `outputs` the results that the model returns besides its loss.  `regathers`: the backward repeats
    all-gathers of activations.  `whole_states` are the bytes of optimizer states of other shapes,
    relative to the parameter's, and `reads` is what the optimizer's update needs whole.
    """

    memory_limit: float | None = None
    """Bytes per device."""
    constraints: tuple[Constraint, ...] = ()
    """The user's own constraints; those of a preset are identified by its name."""
    states: float = 2.0
    batch: ShardingText | None = None
    kept: bool = False
    recompute: tuple[Recompute, ...] = ("none",)
    outputs: tuple[str, ...] = ()
    regathers: bool = False
    whole_states: float = 0.0
    reads: Reads = "shards"


@dataclass(frozen=True, slots=True)
class Search:
    """The size of the search space, over all operators and parameters.

    `candidates` is the total allowed by rules and constraints, and `largest` the most of one operator or
    parameter.  After pruning, `variables` still had a choice among `states` in all, including the forms
    of shared tensors.
    """

    candidates: int = 0
    largest: int = 0
    variables: int = 0
    states: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """An alternative use of the devices, a mesh or stages, and the seconds of its best plan.

    `objective_s` is None if nothing fits into memory.
    """

    mesh: str
    objective_s: float | None


@dataclass(frozen=True, slots=True)
class Share:
    """How much of the model a mesh axis actually splits, as shares between 0 and 1.

    `flops` is the share of the forward's FLOPs; `stored` and `used` are shares of parameter bytes, at
    rest and where operators read them, with each read counted.
    """

    axis: str
    flops: float
    stored: float
    used: float


def idle(shares: tuple[Share, ...], mesh: Mesh) -> str:
    """Return a message such as ``axis x (4 devices) splits no work``, or "" if all axes split some."""
    found = [
        f"{axis.name} ({axis.size} devices)"
        for share, axis in zip(shares, mesh, strict=False)
        if axis.size > 1 and not share.flops
    ]
    words = ("axis", "splits") if len(found) == 1 else ("axes", "split")
    return f"{words[0]} {', '.join(found)} {words[1]} no work" if found else ""


@dataclass(frozen=True, slots=True)
class Padding:
    """A parameter or input that is longer in the step than in the model.

    `axes` are the mesh axes that split the padded dim when operators read it, or at rest.
    """

    leaf: str
    pad: Pad
    axes: tuple[str, ...] = ()

    @property
    def wasted(self) -> float:
        """The share of the dim that is padding."""
        return 1.0 - self.pad.size / self.pad.to


@dataclass(frozen=True, slots=True)
class Padded:
    """A set of paddings that was tried, as text, and the seconds of its best plan.

    `objective_s` is None if nothing meets the constraints and the memory limit.
    """

    what: str
    objective_s: float | None
