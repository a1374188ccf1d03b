"""The record of a habit."""

from __future__ import annotations

from dataclasses import dataclass

EQUAL, DIFFERS, RAISES, NOT_TRIED = "equal", "differs", "raises", ""


@dataclass(frozen=True)
class Habit:
    """A program that people write, and how it ends.

    `code` runs in the names of `run.names`: `model` (in DDP `own` is its module), `optimizer`,
    `batch(step)`, `train(model, batch)` (forward and backward), `prepare(net, **options)`,
    `first(value)` (rank 0's) and torch's modules.  What it leaves in `result` is compared as
    well as weights, buffers and gradients.
    """

    name: str
    """Markdown: the habit as the page has it."""
    code: str
    says: str = ""
    """Words of the refusal; none where it equals one process."""
    in_stages: str | None = None
    """The same on a pipeline; None where that is no other."""
    under: tuple[str, ...] = ()
    """The presets that refuse it; all where none is named."""
    instead: str = ""
    """What to do where it is refused; Markdown."""
    remedy: str = ""
    """`instead` as a program, which ends as `code` does in one process."""
    remedy_in_stages: bool = True
    """Whether a pipeline takes the same remedy."""
    ddp: str = EQUAL
    """What the same program does in `DistributedDataParallel`: weights and gradients."""
    plain: str = ""
    """The program of one process, where it is another."""
    spoils: bool = False
    """The model is not used for another habit."""
    heavy: bool = False
    """It takes so long that it is tried under one preset alone."""
    tolerance: float = 1e-9
    skip: tuple[str, ...] = ()
    """Ways in which it is not tried: ranks hold other parameters, and end otherwise."""

    def check(self) -> None:
        """Raise `ValueError` where the record contradicts itself."""
        refused = bool(self.says or self.in_stages)
        if refused != bool(self.instead):
            raise ValueError(f"{self.name}: what is refused, and that alone, has something instead")
        if self.remedy and not refused:
            raise ValueError(f"{self.name}: a remedy of what is not refused")

    def expected(self, way: str) -> str:
        """Words of the refusal under this way of autopar; none where it is equal."""
        if way == "stages" and self.in_stages is not None:
            return self.in_stages
        return self.says if not self.under or way in self.under else ""
