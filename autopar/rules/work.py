"""Floating-point operations of one operator on the whole tensors.

A multiply-add counts as two.  The formulas depend on shapes alone, so that they also hold for operators
without a rule.  An operator without a formula counts one operation per output element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from autopar.ir.graph import Graph, Node, Tensor, short
from autopar.rules.equation import equation

Formula = Callable[[Node, tuple[Tensor, ...]], int]
"""Returns the operations from the node and its operands."""


def flops(node: Node, graph: Graph) -> int:
    """Return the forward operations: twice a contraction's iteration space, else output elements."""
    if node.is_leaf:
        return 0
    formula = _FORMULAS.get(short(node.op))
    if formula is None:
        return sum(math.prod(tensor.shape) for tensor in node.outputs)
    return formula(node, tuple(graph.tensors[name] for name in node.operands))


def backward_flops(node: Node, graph: Graph) -> float:
    """Return the operations of the gradients of all operands.

    In a product, each factor's gradient takes as many operations as the product; an added operand (a
    bias) takes only a sum.  Attention's four gradient products are twice the forward, and a fused
    kernel recomputes the scores.
    """
    if not any(tensor.differentiable for tensor in node.outputs):
        return 0.0
    name, forward = short(node.op), flops(node, graph)
    wanting = [graph.tensors[each].differentiable for each in node.operands]
    if name == "scaled_dot_product_attention":
        return 2.5 * forward * any(wanting[:3])
    if name == "routed_experts":
        return 2.0 * forward
    if name in _RECURRENT:
        return _through_steps(node, graph)
    if len(wanting) > 2 and name in _ADDED and wanting[_ADDED[name]]:
        return float(forward * (sum(wanting) - 1) + _made(node))
    return float(forward * sum(wanting))


def _through_steps(node: Node, graph: Graph) -> float:
    """Return the operations of each matrix' own gradient and of that of its input or state."""
    operands = tuple(graph.tensors[name] for name in node.operands)
    read, rows, matrices = operands[0], math.prod(operands[0].shape[:-1]), _matrices(node, operands)
    total = 0
    for place, matrix in enumerate(matrices):
        wanted = read.differentiable if place in _reading(node, len(matrices)) else True
        total += 2 * rows * math.prod(matrix.shape) * (matrix.differentiable + wanted)
    return float(total)


def _matrices(node: Node, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the weight matrices of a recurrent operator, without biases."""
    if short(node.op).endswith("_cell"):
        states = 3 if short(node.op) == "lstm_cell" else 2
        return operands[states : states + 2]
    return tuple(tensor for tensor in operands[1:] if len(tensor.shape) == 2)


def _reading(node: Node, matrices: int) -> tuple[int, ...]:
    """Return the positions of the matrices that multiply the input: the first layer's, per direction."""
    if short(node.op).endswith("_cell"):
        return (0,)
    weights = max(place for place, arg in enumerate(node.args) if isinstance(arg, tuple))
    _, layers, _, _, bidirectional, *_ = node.args[weights + 1 :]
    assert isinstance(layers, int)
    return (0, matrices // (2 * layers)) if bidirectional else (0,)


def _made(node: Node) -> int:
    return math.prod(node.outputs[0].shape)


def _summing(operand: int, dim: int) -> Formula:
    """Return a formula in which every output element is a sum over one dim of an operand."""
    return lambda node, operands: 2 * _made(node) * operands[operand].shape[dim]


def _inner(node: Node, operands: tuple[Tensor, ...]) -> int:
    """Return the operations of an inner product; with a scalar operand nothing is summed."""
    if not all(tensor.shape for tensor in operands):
        return _made(node)
    return 2 * _made(node) * operands[0].shape[-1]


def _paired(node: Node, operands: tuple[Tensor, ...]) -> int:
    """Return the operations of products of vectors along one dim, which may be broadcast."""
    dim = node.args[2] if len(node.args) > 2 else dict(node.kwargs).get("dim", -1)
    assert isinstance(dim, int)
    longest = max((tensor.shape for tensor in operands), key=len)
    return 2 * _made(node) * longest[dim]


def _added_batches(node: Node, operands: tuple[Tensor, ...]) -> int:
    """Return the operations of ``addbmm``, which also sums over the batch."""
    batch, _, inner = operands[1].shape
    return 2 * _made(node) * batch * inner


def _outer(node: Node, operands: tuple[Tensor, ...]) -> int:
    return 2 * _made(node)


def _bilinear(node: Node, operands: tuple[Tensor, ...]) -> int:
    return 2 * _made(node) * math.prod(operands[2].shape[1:])


def _chain(node: Node, operands: tuple[Tensor, ...]) -> int:
    """Return the operations of a chain of matrix products, evaluated from the left."""
    rows = math.prod(operands[0].shape[:-1])
    return sum(2 * rows * math.prod(matrix.shape) for matrix in operands[1:])


def _tensordot(node: Node, operands: tuple[Tensor, ...]) -> int:
    dims = node.args[2] if len(node.args) > 2 else dict(node.kwargs)["dims_self"]
    assert isinstance(dims, tuple)
    shape = operands[0].shape
    return 2 * _made(node) * math.prod(shape[d] for d in dims if isinstance(d, int))


def _einsum(node: Node, operands: tuple[Tensor, ...]) -> int:
    """Return the operations of pairwise contraction from the left; letters are summed early."""
    text = node.args[0]
    assert isinstance(text, str)
    read, made = equation(text, [tensor.shape for tensor in operands])
    sizes: dict[str, int] = {}
    for letters, tensor in zip(read, operands, strict=True):
        for letter, size in zip(letters, tensor.shape, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    if len(read) == 1:
        return math.prod(sizes.values())
    total, left = 0, set(read[0])
    for place, letters in enumerate(read[1:], 1):
        every = left | set(letters)
        total += 2 * math.prod(sizes[letter] for letter in every)
        needed = {letter for later in read[place + 1 :] for letter in later} | set(made)
        left = every & needed
    return total


def _convolution(node: Node, operands: tuple[Tensor, ...]) -> int:
    return 2 * _made(node) * math.prod(operands[1].shape[1:])


def _transposed(node: Node, operands: tuple[Tensor, ...]) -> int:
    """Return the operations of a transposed convolution: the kernel's size per input element."""
    return 2 * math.prod(operands[0].shape) * math.prod(operands[1].shape[1:])


def _attention(node: Node, operands: tuple[Tensor, ...]) -> int:
    """Return the operations on query-key pairs; kernels skip the half that `is_causal` masks."""
    query, key, value = (tensor.shape for tensor in operands[:3])
    pairs = math.prod(query[:-1]) * key[-2]
    is_causal = node.args[5] if len(node.args) > 5 else dict(node.kwargs).get("is_causal", False)
    if is_causal:
        pairs //= 2
    return 2 * pairs * (query[-1] + value[-1])


def _recurrent(node: Node, operands: tuple[Tensor, ...]) -> int:
    """Return the operations of every weight matrix at every time step; a cell has one step."""
    rows = math.prod(operands[0].shape[:-1])
    return 2 * rows * sum(math.prod(matrix.shape) for matrix in _matrices(node, operands))


def _grouped(node: Node, operands: tuple[Tensor, ...]) -> int:
    """Return the operations of grouped products; with two 2-d operands the summed dim is grouped."""
    left, right = operands[0].shape, operands[1].shape
    if len(left) == len(right) == 2:
        return 2 * left[0] * left[1] * right[1]
    return 2 * _made(node) * left[-1]


def _experts(node: Node, operands: tuple[Tensor, ...]) -> int:
    """Return the operations of experts: each choice of each token uses one expert's matrices."""
    return sum(_through(operands[1], matrices) for matrices in operands[3:5])


def _through(chosen: Tensor, matrices: Tensor) -> int:
    return 2 * math.prod(chosen.shape) * math.prod(matrices.shape[1:])


def _bags(node: Node, operands: tuple[Tensor, ...]) -> int:
    return math.prod(operands[1].shape) * operands[0].shape[-1]


_RECURRENT = (
    "lstm", "gru", "rnn_tanh", "rnn_relu",
    "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
)  # fmt: skip
_FORMULAS: Mapping[str, Formula] = {
    "linear": _summing(0, -1), "mm": _summing(0, -1), "bmm": _summing(0, -1), "mv": _summing(0, -1),
    "matmul": _summing(0, -1), "dot": _summing(0, -1), "inner": _inner,
    "addmm": _summing(1, -1), "addmv": _summing(1, -1), "baddbmm": _summing(1, -1),
    "linalg_vecdot": _paired, "addbmm": _added_batches, "outer": _outer, "addr": _outer,
    "bilinear": _bilinear, "linalg_multi_dot": _chain, "tensordot": _tensordot, "einsum": _einsum,
    "cdist": _summing(0, -1),
    "conv1d": _convolution, "conv2d": _convolution, "conv3d": _convolution,
    "conv_transpose1d": _transposed, "conv_transpose2d": _transposed, "conv_transpose3d": _transposed,
    "scaled_dot_product_attention": _attention,
    **dict.fromkeys(_RECURRENT, _recurrent),
    "_grouped_mm": _grouped, "transformers::grouped_mm_fallback": _grouped,
    "routed_experts": _experts, "embedding_bag": _bags,
}  # fmt: skip

_ADDED: Mapping[str, int] = {
    "linear": 2, "conv1d": 2, "conv2d": 2, "conv3d": 2, "conv_transpose1d": 2, "conv_transpose2d": 2,
    "conv_transpose3d": 2, "addmm": 0, "addmv": 0, "baddbmm": 0, "addbmm": 0, "addr": 0,
}  # fmt: skip
"""Position of the operand that is added to a product."""
