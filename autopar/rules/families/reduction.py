"""Rules of reductions such as sums, means and extrema, and of operators along dims."""

from __future__ import annotations

from autopar.ir.graph import Arg
from autopar.rules.declare import Call, Declared, rule
from autopar.rules.families.letters import keep_whole, names, term

PLACE_OF_DIM = {"norm": 2, "linalg_vector_norm": 2, "kthvalue": 2}


@rule("sum", "nansum", "count_nonzero", "mean", "amax", "amin", "aminmax", "var", "std", "var_mean",
      "std_mean", "logsumexp", "all", "any", "prod", "norm", "linalg_vector_norm", "argmax", "argmin",
      "max.dim", "max.default", "min.dim", "min.default", "median", "kthvalue")  # fmt: skip
def reduction(call: Call) -> Declared:
    """Only a sum may be split over what it sums; a mean's denominator is the whole dim's."""
    kind = call.node.op.split(".")[1]
    letters = names(len(call.shapes[0]))
    dims = _dims(call, kind, len(letters))
    adds_up = kind in ("sum", "nansum", "count_nonzero")
    read = letters if adds_up else keep_whole(letters, dims)
    kept = len(call.made[0]) == len(letters)
    made = [("1" if i in dims else name) for i, name in enumerate(letters) if kept or i not in dims]
    linear = (frozenset({0}),) if kind in ("sum", "nansum", "mean") else ()
    outputs = ", ".join([term(made)] * len(call.made))
    return Declared(f"{term(read)} -> {outputs}", linear)


def _dims(call: Call, kind: str, rank: int) -> list[int]:
    default = -1 if kind == "kthvalue" else None
    given: Arg = call.arg(PLACE_OF_DIM.get(kind, 1), "dim", default)
    if isinstance(given, int) and not isinstance(given, bool) and "." in call.node.op:
        given = (given,)
    if not isinstance(given, tuple) or not given:
        return list(range(rank))
    return [dim % rank for dim in given if isinstance(dim, int)]


@rule("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "sort", "argsort", "topk", "flip",
      "roll")  # fmt: skip
def along_a_dim(call: Call) -> Declared:
    """What runs along dims keeps them whole; a roll without dims runs along all of them."""
    letters = names(len(call.shapes[0]))
    kind = call.node.op.split(".")[1]
    place = 2 if kind in ("topk", "roll") else 1
    given = call.arg(
        place, "dims" if kind in ("flip", "roll") else "dim", () if kind == "roll" else -1
    )
    dims = [d for d in (given if isinstance(given, tuple) else (given,)) if isinstance(d, int)]
    read = keep_whole(letters, dims or range(len(letters)))
    made = list(read)
    if call.made[0] != call.shapes[0]:
        made[dims[0]] = "picked!"
    linear = (frozenset({0}),) if kind in ("cumsum", "flip", "roll") else ()
    return Declared(f"{term(read)} -> {', '.join([term(made)] * len(call.made))}", linear)
