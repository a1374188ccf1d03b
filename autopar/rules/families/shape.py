"""Rules of operators that rearrange dims: permutations, splits, slices, joins, padding."""

from __future__ import annotations

from autopar.ir.graph import Arg
from autopar.rules.declare import Call, Declared, rule
from autopar.rules.families.letters import keep_whole, names, term

FIRST = (frozenset({0}),)


def number(arg: Arg, default: int = 0) -> int:
    """Return an integer argument, such as a dim or index, or the default."""
    return arg if isinstance(arg, int) else default


@rule("transpose", "t", "permute", "movedim", "numpy_T", "mT", "mH", "adjoint", "swapaxes", "swapdims",
      "moveaxis")  # fmt: skip
def permutation(call: Call) -> Declared:
    """Dims change places."""
    letters = names(len(call.shapes[0]))
    made = list(letters)
    kind = call.node.op.split(".")[1]
    if kind == "permute":
        order = call.arg(1, "dims")
        made = [letters[number(dim)] for dim in order] if isinstance(order, tuple) else made
    elif kind in ("transpose", "swapaxes", "swapdims"):
        a, b = number(call.arg(1, "dim0")), number(call.arg(2, "dim1"))
        made[a], made[b] = made[b], made[a]
    elif kind in ("movedim", "moveaxis"):
        made = _moved(letters, call.arg(1, "source"), call.arg(2, "destination"))
    elif kind in ("mT", "mH", "adjoint"):
        made[-1], made[-2] = made[-2], made[-1]
    else:
        made.reverse()
    return Declared(f"{term(letters)} -> {term(made)}", FIRST)


def _moved(letters: list[str], source: Arg, destination: Arg) -> list[str]:
    """Return the letters with the dims `source` at positions `destination`, and the others in order."""
    froms = source if isinstance(source, tuple) else (source,)
    tos = destination if isinstance(destination, tuple) else (destination,)
    rank = len(letters)
    placed = {number(to) % rank: letters[number(at)] for at, to in zip(froms, tos, strict=True)}
    others = iter(name for name in letters if name not in placed.values())
    return [placed[place] if place in placed else next(others) for place in range(rank)]


@rule("split", "split_with_sizes", "chunk", "tensor_split")
def split(call: Call) -> Declared | None:
    """Equal parts are blocks of the split dim, which may itself be sharded inside every block."""
    if len(call.shapes) > 1:
        return None
    letters = names(len(call.shapes[0]))
    dim = number(call.arg(2, "dim")) % len(letters)
    parts = [shape[dim] for shape in call.made]
    read, made = list(letters), list(letters)
    if len(set(parts)) == 1:
        read[dim] = f"(parts! {letters[dim]})"
        outputs = [term(made)] * len(parts)
        return Declared(f"{term(read)} -> {', '.join(outputs)}", FIRST, {"parts": len(parts)})
    read[dim] = "whole!"
    outputs = []
    for i in range(len(parts)):
        made[dim] = f"part{i}!"
        outputs.append(term(made))
    return Declared(f"{term(read)} -> {', '.join(outputs)}", FIRST)


@rule("unbind", "select")
def pick(call: Call) -> Declared:
    """One dim disappears."""
    letters = names(len(call.shapes[0]))
    dim = number(call.arg(1, "dim")) % len(letters)
    made = [name for i, name in enumerate(letters) if i != dim]
    outputs = ", ".join([term(made)] * len(call.made))
    return Declared(f"{term(keep_whole(letters, [dim]))} -> {outputs}", FIRST)


@rule("slice", "narrow", "pad", "constant_pad_nd")
def resized(call: Call) -> Declared | None:
    """Dims along which entries move stay whole."""
    shape, out = call.shapes[0], call.made[0]
    if len(call.shapes) > 1 or len(shape) != len(out):
        return None
    letters, kind = names(len(shape)), call.node.op.split(".")[1]
    if kind in ("slice", "narrow"):
        changed = [number(call.arg(1, "dim")) % len(letters)]
    else:
        changed = _padded(call.arg(1, "pad"), len(letters))
    made = [f"made{i}!" if i in changed else name for i, name in enumerate(letters)]
    fill = {"pad": call.arg(3, "value"), "constant_pad_nd": call.arg(2, "value", 0)}.get(kind)
    linear = FIRST if fill in (0, None) else ()
    return Declared(f"{term(keep_whole(letters, changed))} -> {term(made)}", linear)


def _padded(pad: Arg, rank: int) -> list[int]:
    """Return the dims that grow, shrink or shift: `pad` has two numbers per dim, the last dim first."""
    numbers = pad if isinstance(pad, tuple) else ()
    return [rank - 1 - i // 2 for i, amount in enumerate(numbers) if amount != 0]


@rule("cat", "concat")
def cat(call: Call) -> Declared:
    """Parts of equal size are blocks of the joined dim."""
    letters = names(len(call.made[0]))
    dim = number(call.arg(1, "dim")) % len(letters)
    sizes = [shape[dim] for shape in call.shapes]
    every = (frozenset(range(len(sizes))),)
    made = list(letters)
    if len(set(sizes)) == 1:
        made[dim] = f"(parts! {letters[dim]})"
        terms = [term(letters)] * len(sizes)
        return Declared(f"{', '.join(terms)} -> {term(made)}", every, {"parts": len(sizes)})
    terms = []
    for i in range(len(sizes)):
        part = list(letters)
        part[dim] = f"part{i}!"
        terms.append(term(part))
    made[dim] = "whole!"
    return Declared(f"{', '.join(terms)} -> {term(made)}", every)


@rule("stack")
def stack(call: Call) -> Declared:
    """A new dim, one entry per operand."""
    letters = names(len(call.shapes[0]))
    dim = number(call.arg(1, "dim")) % (len(letters) + 1)
    made = [*letters[:dim], "parts!", *letters[dim:]]
    count = len(call.shapes)
    terms = ", ".join([term(letters)] * count)
    return Declared(f"{terms} -> {term(made)}", (frozenset(range(count)),), {"parts": count})


@rule("repeat_interleave.self_int")
def repeat_interleave(call: Call) -> Declared | None:
    """Every entry becomes several in a row."""
    dim, count = call.arg(2, "dim"), call.arg(1, "repeats")
    if not isinstance(dim, int) or not isinstance(count, int) or call.arg(3, "output_size"):
        return None
    letters = names(len(call.shapes[0]))
    made = list(letters)
    made[dim] = f"({letters[dim]} copies!)"
    return Declared(f"{term(letters)} -> {term(made)}", FIRST, {"copies": count})


@rule("glu")
def glu(call: Call) -> Declared:
    """One half of a dim gates the other."""
    made = names(len(call.shapes[0]))
    read = list(made)
    dim = number(call.arg(1, "dim", -1), -1) % len(read)
    read[dim] = f"(halves! {made[dim]})"
    return Declared(f"{term(read)} -> {term(made)}", sizes={"halves": 2})


@rule("tril", "triu")
def triangle(call: Call) -> Declared:
    """The matrices in the last two dims stay whole."""
    letters = keep_whole(names(len(call.shapes[0])), [-1, -2])
    return Declared(f"{term(letters)} -> {term(letters)}", FIRST)


@rule("diagonal")
def diagonal(call: Call) -> Declared:
    """Two dims become one, the last."""
    letters = names(len(call.shapes[0]))
    dims = [number(call.arg(2, "dim1", 0)), number(call.arg(3, "dim2", 1), 1)]
    gone = {dim % len(letters) for dim in dims}
    made = [*(name for place, name in enumerate(letters) if place not in gone), "made!"]
    return Declared(f"{term(keep_whole(letters, dims))} -> {term(made)}", FIRST)


@rule("diag_embed")
def diag_embed(call: Call) -> Declared | None:
    """The last dim becomes the diagonal of a matrix."""
    if (call.arg(2, "dim1", -2), call.arg(3, "dim2", -1)) != (-2, -1):
        return None
    lead = names(len(call.shapes[0]) - 1)
    return Declared(f"{term([*lead, 'd!'])} -> {term([*lead, 'm!', 'n!'])}", FIRST)


@rule("unfold")
def unfold(call: Call) -> Declared:
    """Windows along one dim; their places go last."""
    letters = names(len(call.shapes[0]))
    dim = number(call.arg(1, "dimension")) % len(letters)
    made = [*letters[:dim], "windows!", *letters[dim + 1 :], "inside!"]
    return Declared(f"{term(keep_whole(letters, [dim]))} -> {term(made)}", FIRST)
