"""Rules of elementwise operators; operands are broadcast to the output's shape."""

from __future__ import annotations

from autopar.rules.declare import Call, Declared, fixed, rule
from autopar.rules.families.letters import broadcast, names, term

fixed(
    "b* -> b*",
    "abs", "acos", "asin", "atan", "celu", "ceil", "clamp", "clamp_min", "clamp_max", "cos", "cosh",
    "elu", "erf", "erfc", "exp", "expm1", "floor", "gelu", "hardsigmoid", "hardswish", "hardtanh",
    "leaky_relu", "log", "log1p", "log2", "log_sigmoid", "logical_not", "mish", "pow.Tensor_Scalar",
    "reciprocal", "relu", "relu6", "round", "rsqrt", "selu", "sigmoid", "sign", "silu", "sin", "sinh",
    "softplus", "sqrt", "square", "tan", "tanh", "add.Scalar", "sub.Scalar", "rsub.Scalar",
    "pow.Scalar", "acosh", "asinh", "atanh", "log10", "exp2", "erfinv", "sinc", "lgamma", "digamma",
    "logit", "trunc", "frac", "sgn", "signbit", "isnan", "isinf", "isfinite", "nan_to_num",
    "threshold", "softshrink", "hardshrink", "bitwise_not", "special_entr", "special_expit",
    "remainder.Scalar", "fmod.Scalar", "float_power.Tensor_Scalar", "float_power.Scalar",
    "__and__.Scalar", "__or__.Scalar", "__xor__.Scalar", "bitwise_and.Scalar", "bitwise_or.Scalar",
    "bitwise_xor.Scalar", "__lshift__.Scalar", "__rshift__.Scalar",
)  # fmt: skip
fixed("b* -> b*", "neg", "clone", "alias", "contiguous", "mul.Scalar", "div.Scalar", "positive",
      "deg2rad", "rad2deg", linear=((0,),))  # fmt: skip
# Shards draw different masks and replicas equal ones, so a partial sum stays a partial sum.
fixed("b* -> b*", "dropout", linear=((0,),))
# The result has no gradient, so no partial sum passes through.
fixed("b* -> b*", "detach")


@rule("to", "_to_copy")
def cast(call: Call) -> Declared:
    """Linear, but for the rounding of floats to integers."""
    source, made = call.operands[0].dtype, call.node.outputs[0].dtype
    rounds = "float" in source and "float" not in made
    return Declared("b* -> b*", () if rounds else (frozenset({0}),))


_LINEAR = {
    "add": ((0, 1),),
    "sub": ((0, 1),),
    "mul": ((0,), (1,)),
    "div": ((0,),),
    "true_divide": ((0,),),
    "xlogy": ((0,),),
}


@rule("add", "sub", "mul", "div", "pow", "maximum", "minimum", "where", "masked_fill", "atan2",
      "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "bitwise_and", "bitwise_or",
      "fmod", "remainder", "lerp", "addcmul", "addcdiv", "rsub", "clamp.Tensor", "clamp_min.Tensor",
      "clamp_max.Tensor", "true_divide", "floor_divide", "max.other", "min.other", "fmax", "fmin",
      "logical_xor", "bitwise_xor", "__and__", "__or__", "__xor__", "logaddexp", "logaddexp2", "hypot",
      "xlogy", "copysign", "heaviside", "isclose", "float_power.Tensor_Tensor", "__lshift__.Tensor",
      "__rshift__.Tensor")  # fmt: skip
def elementwise(call: Call) -> Declared:
    """Any number of operands, broadcast together."""
    out = call.made[0]
    operands = ", ".join(broadcast(shape, out) for shape in call.shapes)
    text = f"{operands} -> {term(names(len(out)))}"
    kind = call.node.op.split(".")[1]
    rounded = kind == "div" and call.arg(2, "rounding_mode") is not None
    linear = () if rounded else _linear(kind, len(call.shapes))
    return Declared(text, tuple(map(frozenset, linear)))


def _linear(kind: str, count: int) -> tuple[tuple[int, ...], ...]:
    """Return the linear sets; with one tensor and a number, a sum is affine and a product linear."""
    if count == 1:
        return ((0,),) if kind in ("mul", "div", "true_divide") else ()
    return _LINEAR.get(kind, ())


@rule("prelu")
def prelu(call: Call) -> Declared:
    """One slope for all, or one per channel, the second dim."""
    letters = names(len(call.shapes[0]))
    slopes = call.shapes[1]
    single = not slopes or slopes[0] == 1
    slope = ("1" if slopes else "()") if single else letters[1 if len(letters) > 1 else 0]
    return Declared(f"{term(letters)}, {slope} -> {term(letters)}")


@rule("feature_dropout")
def feature_dropout(call: Call) -> Declared:
    """Whole channels are dropped: samples and channels may be split, positions may not."""
    letters = names(len(call.shapes[0]))
    whole = term([*letters[:2], *(f"{name}!" for name in letters[2:])])
    return Declared(f"{whole} -> {whole}", (frozenset({0}),))
