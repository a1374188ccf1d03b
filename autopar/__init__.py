"""autopar: an auto-parallelism compiler for PyTorch."""

from autopar.garbage import uncollected

with uncollected():
    from autopar.api import compile_model, parallelize, plan
    from autopar.errors import AutoparError
    from autopar.mesh import Mesh
    from autopar.placement import I, N, P, R, S, Sharding
    from autopar.planning.posed import Compilation
    from autopar.plans.plan import Plan
    from autopar.rules import rule
    from autopar.runtime.parallel import Parallel

__all__ = [
    "AutoparError", "Compilation", "I", "Mesh", "N", "P", "Parallel", "Plan", "R", "S", "Sharding",
    "compile_model", "parallelize", "plan", "rule",
]  # fmt: skip
