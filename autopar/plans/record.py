"""What a plan records beside its decisions, as small values: what was asked, searched and split."""

from __future__ import annotations

from dataclasses import dataclass

from autopar.ir.blocks import Recompute
from autopar.ir.mesh import Mesh
from autopar.ir.pads import Pad
from autopar.plans.texts import ShardingText
from autopar.request.constraints import Constraint


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What a plan obeys besides model, mesh and preset: with them it poses its problem again.

    `states` are the tensors of a parameter's size that the optimizer keeps.  `batch` is how inputs
    arrive that hold a rank's own part of the batch; None: they come whole.  `kept` says whether
    parameters had to stay where an earlier plan had put them, `recompute` what blocks might do, and
    `outputs` what the model returns besides its loss.
    """

    memory_limit: float | None = None
    """Bytes per device."""
    constraints: tuple[Constraint, ...] = ()
    """The user's own; those of the preset go by its name."""
    states: float = 2.0
    batch: ShardingText | None = None
    kept: bool = False
    recompute: tuple[Recompute, ...] = ("none",)
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Search:
    """How much there was to choose from, over all operators and parameters.

    `candidates` and `largest` (of one operator or parameter) count what rules and constraints allow;
    `variables` still had a choice of `states` after pruning, the forms of shared tensors among them.
    """

    candidates: int = 0
    largest: int = 0
    variables: int = 0
    states: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """Another way to use the devices, a mesh or stages, and the best plan's seconds there.

    `objective_s` is None where nothing fits into the memory.
    """

    mesh: str
    objective_s: float | None


@dataclass(frozen=True, slots=True)
class Share:
    """How much of the model a mesh axis really splits, as shares between 0 and 1.

    `flops` of the forward pass; `stored` and `used` of parameter bytes, at rest and where operators
    read them, each reading counted.
    """

    axis: str
    flops: float
    stored: float
    used: float


def idle(shares: tuple[Share, ...], mesh: Mesh) -> str:
    """``axis x (4 devices) splits no work``, of the axes of which that is so."""
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

    `axes` are the mesh axes that split the padded dim where operators read it, or at rest.
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
    """A set of paddings that was planned, as text, and the best plan's seconds under it.

    `objective_s` is None where nothing meets the constraints or the memory limit.
    """

    what: str
    objective_s: float | None
