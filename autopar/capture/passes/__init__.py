"""Clean-up passes: each is one rewrite of a `Graph`, and `FIRST` and `LAST` define their order.

Up to the end of `FIRST`, numbers are in the same places for every batch size
(`autopar.capture.numbers`). Rewrites that depend on the value of a number belong in `LAST`.
"""

from autopar.capture.passes.composite import spell_out
from autopar.capture.passes.dead import drop_dead
from autopar.capture.passes.fold import fold
from autopar.capture.passes.kept import copy_changed_buffers
from autopar.capture.passes.means import split_means
from autopar.capture.passes.merge import merge_creation
from autopar.capture.passes.noop import drop_copies, drop_noops
from autopar.capture.passes.normal import normalise
from autopar.capture.passes.statistics import widen_norms

FIRST = (
    spell_out,  # convenience operators for joins and splits
    normalise,  # one spelling for casts, reshapes and creation operators
    widen_norms,  # batch norms as kernels accept them in low precision
    drop_copies,  # no-ops, whatever the numbers are
    split_means,  # mean = sum / count, so that reductions are pure sums
    drop_dead,
    fold,  # mask arithmetic that no input affects
)
LAST = (
    drop_noops,  # all other no-ops
    merge_creation,  # one constant instead of one per layer
    drop_dead,
    copy_changed_buffers,  # the backward needs their values before the step
)

__all__ = ["FIRST", "LAST"]
