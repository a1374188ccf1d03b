"""Rules of products that sum over a factor."""

from __future__ import annotations

from autopar.rules.declare import Call, Declared, fixed, rule
from autopar.rules.equation import equation
from autopar.rules.families.letters import broadcast, names, term

BOTH = (frozenset({0}), frozenset({1}))

fixed("n k, k m -> n m", "mm", linear=((0,), (1,)))
fixed("b n k, b k m -> b n m", "bmm", linear=((0,), (1,)))
fixed("n k, k -> n", "mv", linear=((0,), (1,)))
fixed("k, k -> ", "dot", linear=((0,), (1,)))
fixed("n, m -> n m", "outer", linear=((0,), (1,)))


@rule("linear")
def linear(call: Call) -> Declared:
    """``F.linear``: the weight is [out, in], or [in] for one output."""
    if len(call.shapes) == 2 and len(call.shapes[1]) == 1:
        return Declared("b* i, i -> b*", BOTH)
    if len(call.operands) == 3:
        return Declared("b* i, o i, + o -> b* o", (frozenset({0, 2}), frozenset({1, 2})))
    return Declared("b* i, o i -> b* o", BOTH)


_ADDED = {
    "addmm": ("n i, i o", "n o"),
    "addmv": ("n i, i", "n"),
    "addr": ("n, o", "n o"),
    "baddbmm": ("b n i, b i o", "b n o"),
    "addbmm": ("b n i, b i o", "n o"),
}


@rule(*_ADDED)
def added(call: Call) -> Declared:
    """``torch.addmm`` and its kin: what is added, of any shape that stretches, comes first."""
    product, made = _ADDED[call.node.op.split(".")[1]]
    bias = broadcast(call.shapes[0], call.made[0], made.split())
    return Declared(f"+ {bias}, {product} -> {made}", (frozenset({0, 1}), frozenset({0, 2})))


@rule("bilinear")
def bilinear(call: Call) -> Declared:
    """``F.bilinear``: the weight is [out, left, right]."""
    if len(call.operands) == 3:
        each = tuple(frozenset({place}) for place in range(3))
        return Declared("b* i, b* j, o i j -> b* o", each)
    each = tuple(frozenset({place, 3}) for place in range(3))
    return Declared("b* i, b* j, o i j, + o -> b* o", each)


@rule("matmul")
def matmul(call: Call) -> Declared:
    """``@``: batch dims are broadcast; a vector on either side loses its dim."""
    left, right = call.shapes
    out = call.made[0]
    batch_rank = len(out) - (len(left) > 1) - (len(right) > 1)
    batch = out[:batch_rank]
    rows = ["n"] if len(left) > 1 else []
    columns = ["m"] if len(right) > 1 else []
    first = [*_batch(left[:-2], batch), *rows, "k"]
    second = [*_batch(right[:-2], batch), "k", *columns]
    made = [*(f"b{i}" for i in range(batch_rank)), *rows, *columns]
    return Declared(f"{' '.join(first)}, {' '.join(second)} -> {' '.join(made)}", BOTH)


def _batch(shape: tuple[int, ...], out: tuple[int, ...]) -> list[str]:
    offset = len(out) - len(shape)
    return [
        "1" if size == 1 and out[offset + i] != 1 else f"b{offset + i}"
        for i, size in enumerate(shape)
    ]


@rule("inner")
def inner(call: Call) -> Declared | None:
    """The last dims are summed; a scalar multiplies."""
    if not all(call.shapes):
        return None
    left = [f"l{i}" for i in range(len(call.shapes[0]) - 1)]
    right = [f"r{i}" for i in range(len(call.shapes[1]) - 1)]
    text = f"{term([*left, 'k'])}, {term([*right, 'k'])} -> {term([*left, *right])}"
    return Declared(text, BOTH)


@rule("tensordot")
def tensordot(call: Call) -> Declared:
    """Pairs of dims are summed; the others stand one behind the other."""
    left = [f"l{i}" for i in range(len(call.shapes[0]))]
    right = [f"r{i}" for i in range(len(call.shapes[1]))]
    ours, theirs = call.arg(2, "dims_self"), call.arg(3, "dims_other")
    assert isinstance(ours, tuple) and isinstance(theirs, tuple)
    made_left, made_right = list(left), list(right)
    for one, other in zip(ours, theirs, strict=True):
        assert isinstance(one, int) and isinstance(other, int)
        right[other] = left[one]
        made_left[one] = made_right[other] = ""
    made = [name for name in (*made_left, *made_right) if name]
    return Declared(f"{term(left)}, {term(right)} -> {term(made)}", BOTH)


@rule("linalg_multi_dot")
def chain(call: Call) -> Declared | None:
    """A product of matrices, each against the next."""
    if any(len(shape) != 2 for shape in call.shapes):
        return None
    count = len(call.shapes)
    read = ", ".join(f"k{i} k{i + 1}" for i in range(count))
    return Declared(f"{read} -> k0 k{count}", tuple(frozenset({i}) for i in range(count)))


@rule("einsum")
def einsum(call: Call) -> Declared | None:
    """The equation is the rule.  Dims of size one stretch; a diagonal within an operand stays whole."""
    text = call.arg(0, "equation")
    assert isinstance(text, str)
    read, made = equation(text, call.shapes)
    if any(len(set(letters)) < len(letters) for letters in read):
        return None
    sizes: dict[str, int] = {}
    for letters, shape in zip(read, call.shapes, strict=True):
        for letter, size in zip(letters, shape, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    terms = [
        term(
            [
                "1" if size < sizes[letter] else letter
                for letter, size in zip(letters, shape, strict=True)
            ]
        )
        for letters, shape in zip(read, call.shapes, strict=True)
    ]
    each = tuple(frozenset({place}) for place in range(len(terms)))
    return Declared(f"{', '.join(terms)} -> {term(made)}", each)


@rule("transformers::grouped_mm_fallback")
def grouped(call: Call) -> Declared | None:
    """Rows in groups, each group times its own matrix: which rows is known from all of them."""
    if [len(shape) for shape in call.shapes] != [2, 3, 1]:
        return None
    return Declared("s! i, e! i o, e! -> s! o", BOTH)


@rule("cdist")
def distances(call: Call) -> Declared:
    """Distances of all pairs of rows; features stay whole."""
    out = call.made[0]
    batch = names(len(out) - 2)
    rows = [
        term([*_stretched(shape[:-2], out[:-2], batch), row, "k!"])
        for shape, row in zip(call.shapes, ("n", "m"), strict=True)
    ]
    return Declared(f"{', '.join(rows)} -> {term([*batch, 'n', 'm'])}")


@rule("linalg_vecdot")
def vecdot(call: Call) -> Declared:
    """Products of vectors along one dim, which are stretched to each other before."""
    rank = max(map(len, call.shapes))
    letters = names(rank)
    dim = call.arg(2, "dim", -1)
    assert isinstance(dim, int)
    shape = tuple(
        max(s[i - rank + len(s)] for s in call.shapes if i - rank + len(s) >= 0)
        for i in range(rank)
    )
    terms = ", ".join(broadcast(s, shape, letters) for s in call.shapes)
    made = [name for place, name in enumerate(letters) if place != dim % rank]
    return Declared(f"{terms} -> {term(made)}", BOTH)


def _stretched(shape: tuple[int, ...], out: tuple[int, ...], letters: list[str]) -> list[str]:
    return broadcast(shape, out, letters).split() if shape else []


@rule("cosine_similarity", "pairwise_distance")
def alike(call: Call) -> Declared:
    """Rows are compared along one whole dim, after they were stretched to each other."""
    rank = max(map(len, call.shapes))
    shape = tuple(
        max(s[i - rank + len(s)] for s in call.shapes if i - rank + len(s) >= 0)
        for i in range(rank)
    )
    kind = call.node.op.split(".")[1]
    given = call.arg(2, "dim", 1) if kind == "cosine_similarity" else -1
    assert isinstance(given, int)
    letters = names(rank)
    dim = given % rank
    letters[dim] = "k!"
    terms = ", ".join(broadcast(s, shape, letters) for s in call.shapes)
    made = [name for i, name in enumerate(letters) if i != dim]
    if len(call.made[0]) == rank:
        made.insert(dim, "1")
    return Declared(f"{terms} -> {term(made)}")
