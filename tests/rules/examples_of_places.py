"""Examples of what looks up, writes or moves entries, of einsum, and of recurrent layers."""

from __future__ import annotations

import transformers.integrations.moe  # noqa: F401  registers the grouped product

from tests.rules.building import F64, ids, mask, n, t
from tests.rules.building import call as _call

EINSUMS = (
    _call("einsum", "ij,jk->ik", (t(6, 12), t(12, 18))),
    _call("einsum", "bsec,bsm->ebcm", (t(6, 9, 4, 3), t(6, 9, 12)), note="dispatch"),
    _call("einsum", "bsec,ebcm->bsm", (t(6, 9, 4, 3), t(4, 6, 3, 12)), note="combine"),
    _call("einsum", "nhwpqc->nchpwq", (t(6, 4, 9, 2, 3, 8),), note="permute"),
    _call("einsum", "ab->a", (t(6, 9),), note="sum"),
    _call("einsum", "a,a", (t(6), t(6)), note="implicit scalar"),
    _call("einsum", "ba,ac", (t(6, 9), t(9, 12)), note="implicit"),
    _call("einsum", "...ij,...jk->...ik", (t(6, 9, 12), t(12, 18)), note="dots"),
    _call("einsum", "a...,a->...", (t(6, 9, 12), t(6)), note="dots in the result"),
    _call("einsum", "bqA,bkA->bqk", (t(6, 9, 12), t(1, 18, 12)), note="stretched"),
    _call("einsum", "ij,jk,kl->il", (t(6, 9), t(9, 12), t(12, 18)), note="three"),
    _call("einsum", "ij,jk->ik", (t(6, 6), t(6, 6)), note="square"),
    _call("einsum", "ii->i", (t(6, 6),), note="diagonal"),
)

INDEXING = (
    _call("embedding", t(12, 18), ids(6, 9)),
    _call("embedding", t(12, 18), ids(6, 9), 3, note="padding"),
    _call("embedding", t(12, 18), ids(6, 9), -1, True, note="by frequency"),
    _call("embedding", t(12, 18), ids(), note="one index"),
    _call("index.Tensor", t(12, 18, 9), (ids(6),)),
    _call("index.Tensor", t(12, 18, 9), (None, ids(6, 4)), note="inner"),
    _call("index.Tensor", t(12, 18, 9), (ids(6), ids(6)), note="two"),
    _call("index.Tensor", t(12, 18, 9), (None, ids(6, 1), ids(4)), note="stretched"),
    _call("index.Tensor", t(12, 18, 9), (ids(4), None, ids(6, 1)), note="apart"),
    _call("index.Tensor", t(12, 18), (ids(), None), note="one index"),
    _call("index.Tensor", t(6, 6, 6), (None, ids(6)), note="square"),
    _call("index.Tensor", n(12, 18), (mask(12),), note="mask"),
    _call("index_select", t(6, 9, 12), 1, ids(4)),
    _call("gather", t(6, 9), 1, ids(6, 12)),
    _call("gather", t(6, 9), -2, ids(4, 9), note="first"),
    _call("gather", t(6, 9, 12), 1, ids(3, 4, 12), note="short"),
    _call("gather", n(6, 9), 1, ids(6, 12), note="without gradient"),
    _call("take_along_dim", t(6, 9), ids(6, 12), 1),
    _call("one_hot", ids(6, 9), 12),
    _call("one_hot", ids(6, 9), note="as many as come"),
    _call("bucketize.Tensor", t(6, 9), n(12)),
    _call("isin.Tensor_Tensor", ids(6, 9), ids(12)),
    _call("autopar_static.nonzero.default", ids(6, 9), 54),
    _call("autopar_static.repeats.default", ids(6), 12),
)

SCATTERS = (
    _call("index_add", t(6, 9, 12), 1, ids(4), t(6, 4, 12)),
    _call("index_add", t(6, 9), 0, ids(4), t(4, 9), alpha=2, note="alpha"),
    _call("index_add", n(6, 9), 0, ids(4), t(4, 9), note="into constants"),
    _call("index_copy", t(6, 9, 12), 1, ids(4), t(6, 4, 12)),
    _call("index_fill.int_Scalar", t(6, 9, 12), 1, ids(4), 1.5),
    _call("index_fill.int_Scalar", t(6, 9, 12), 1, ids(4), 0, note="zero"),
    _call("scatter_add", t(6, 9), 1, ids(6, 12), t(6, 12)),
    _call("scatter_add", n(6, 9), 1, ids(6, 12), t(6, 12), note="into constants"),
    _call("scatter_add", t(6, 9, 12), 1, ids(3, 4, 12), n(6, 8, 12), note="short"),
    _call("scatter.src", t(6, 9), 1, ids(6, 12), t(6, 12)),
    _call("scatter.src", t(6, 9, 12), 1, ids(3, 4, 12), n(6, 8, 12), note="short"),
    _call("scatter.value", t(6, 9), 1, ids(6, 12), 1.5),
    _call("scatter.value", t(6, 9, 12), 1, ids(3, 4, 12), 0, note="zero"),
    _call("scatter_reduce.two", t(6, 9), 1, ids(6, 12), t(6, 12), "sum"),
    _call("scatter_reduce.two", t(6, 9), 1, ids(6, 12), t(6, 12), "mean", note="mean"),
    _call("scatter_reduce.two", t(6, 9), 1, ids(6, 12), t(6, 12), "amax", note="largest"),
    _call(
        "scatter_reduce.two", t(6, 9), 1, ids(6, 12), t(6, 12), "sum", include_self=False,
        note="without itself",
    ),
    _call("index_put", t(12, 9), (ids(6),), t(6, 9)),
    _call("index_put", t(12, 9), (ids(6),), t(9), True, note="added, stretched"),
    _call("index_put", t(12, 9), (ids(6),), t(6, 9), True, note="added"),
    _call("index_put", t(12, 18, 9), (None, ids(6, 1), ids(4)), t(12, 6, 4), True, note="inner"),
    _call("index_put", t(12, 18, 9), (ids(4), None, ids(6, 1)), t(18), note="apart"),
    _call("slice_scatter", t(6, 9, 12), t(6, 6, 12), 1, 0, 6),
    _call("select_scatter", t(6, 9, 12), t(6, 12), 1, 2),
)  # fmt: skip

_LSTM = (t(24, 9), t(24, 6), t(24), t(24))
_BACK = (t(24, 9), t(24, 6), t(24), t(24))
_TWO = (*_LSTM, t(24, 6), t(24, 6), t(24), t(24))
RECURRENT = (
    _call(
        "lstm.input", t(4, 12, 9), (t(2, 4, 6), t(2, 4, 6)), _TWO, True, 2, 0.0, True, False, True
    ),
    _call(
        "lstm.input", t(12, 4, 9), (t(2, 4, 6), t(2, 4, 6)), (*_LSTM, *_BACK),
        True, 1, 0.0, True, True, False, note="both ways",
    ),
    _call(
        "gru.input", t(4, 12, 9), t(2, 4, 6),
        (t(18, 9), t(18, 6), t(18), t(18), t(18, 6), t(18, 6), t(18), t(18)),
        True, 2, 0.0, True, False, True,
    ),
    _call(
        "rnn_tanh.input", t(12, 4, 9), t(2, 4, 6), (t(6, 9), t(6, 6), t(6, 6), t(6, 6)),
        False, 2, 0.0, True, False, False,
    ),
    _call(
        "rnn_relu.input", t(12, 4, 9), t(2, 4, 6), (t(6, 9), t(6, 6), t(6, 6), t(6, 6)),
        False, 2, 0.0, True, False, False,
    ),
    _call("lstm_cell", t(12, 9), (t(12, 6), t(12, 6)), *_LSTM),
    _call("gru_cell", t(12, 9), t(12, 6), t(18, 9), t(18, 6), t(18), t(18)),
    _call("rnn_tanh_cell", t(12, 9), t(12, 6), t(6, 9), t(6, 6), t(6), t(6)),
    _call("rnn_relu_cell", t(12, 9), t(12, 6), t(6, 9), t(6, 6), t(6), t(6)),
)  # fmt: skip

SAMPLING = (
    _call("max_pool1d", t(6, 12, 18), [3]),
    _call("max_pool2d", t(6, 15, 12, 18), [2, 2]),
    _call("max_pool2d", t(15, 12, 18), [3, 3], note="no batch"),
    _call("max_pool3d", t(6, 9, 12, 4, 8), [2, 2, 2]),
    _call("max_pool1d_with_indices", t(6, 12, 18), [3]),
    _call("max_pool2d_with_indices", t(6, 15, 12, 18), [2, 2]),
    _call("max_pool3d_with_indices", t(6, 9, 12, 4, 8), [2, 2, 2]),
    _call("avg_pool1d", t(6, 12, 18), [3]),
    _call("avg_pool2d", t(6, 15, 12, 18), [2, 2]),
    _call("avg_pool2d", t(15, 12, 18), [3, 3], [1, 1], [1, 1], True, note="no batch"),
    _call("avg_pool3d", t(6, 9, 12, 4, 8), [2, 2, 2]),
    _call("adaptive_avg_pool1d", t(6, 12, 18), [9]),
    _call("adaptive_avg_pool2d", t(6, 15, 12, 18), [6, 9]),
    _call("adaptive_avg_pool3d", t(6, 9, 12, 4, 8), [6, 2, 4]),
    _call("adaptive_max_pool1d", t(6, 12, 18), [9]),
    _call("adaptive_max_pool2d", t(6, 15, 12, 18), [6, 9]),
    _call("adaptive_max_pool3d", t(6, 9, 12, 4, 8), [6, 2, 4]),
    _call("upsample_nearest1d.vec", t(6, 9, 8), [12], None),
    _call("upsample_nearest2d.vec", t(6, 9, 4, 8), None, [2.0, 2.0]),
    _call("upsample_nearest3d.vec", t(6, 9, 2, 4, 8), [4, 8, 12], None),
    _call("_upsample_nearest_exact1d.vec", t(6, 9, 8), [12], None),
    _call("_upsample_nearest_exact2d.vec", t(6, 9, 4, 8), [8, 12], None),
    _call("_upsample_nearest_exact3d.vec", t(6, 9, 2, 4, 8), [4, 8, 12], None),
    _call("upsample_linear1d.vec", t(6, 9, 8), [12], False, None),
    _call("upsample_bilinear2d.vec", t(6, 9, 4, 8), [8, 12], True, None),
    _call("upsample_bicubic2d.vec", t(6, 9, 4, 8), [8, 12], False, None),
    _call("upsample_trilinear3d.vec", t(6, 9, 2, 4, 8), [4, 8, 12], False, None),
    _call("_upsample_bilinear2d_aa.vec", t(6, 9, 4, 8), [8, 12], False, None),
    _call("_upsample_bicubic2d_aa.vec", t(6, 9, 4, 8), [8, 12], False, None),
    _call("grid_sampler", t(6, 9, 4, 8), n(6, 12, 10, 2), 0, 0, False),
    _call("im2col", t(6, 9, 8, 10), [3, 3], [1, 1], [1, 1], [1, 1]),
    _call("im2col", t(9, 8, 10), [3, 3], [1, 1], [1, 1], [1, 1], note="no batch"),
    _call("col2im", t(6, 81, 80), [8, 10], [3, 3], [1, 1], [1, 1], [1, 1]),
    _call("pixel_shuffle", t(6, 54, 8, 10), 3),
    _call("pixel_shuffle", t(24, 9, 10), 2, note="no batch"),
    _call("pixel_unshuffle", t(6, 9, 8, 12), 2),
    _call("channel_shuffle", t(6, 12, 9), 2),
)

EXPERTS = (
    _call(
        "autopar.routed_experts.default",
        t(12, 9), ids(12, 2), t(12, 2), t(6, 16, 9), t(6, 18, 8), "silu",
    ),
    *(
        _call(
            "autopar.routed_experts.default",
            t(12, 9), ids(12, 4), t(12, 4), t(6, 8, 9), t(6, 18, 8), activation, note=activation,
        )
        for activation in ("relu", "relu_squared", "gelu", "gelu_tanh")
    ),
    _call(
        "autopar.routed_experts.default",
        t(12, 9), ids(12, 2), t(12, 2), t(6, 16, 9), t(6, 18, 8), "silu", t(6, 16), t(6, 18),
        note="biases",
    ),
    _call(
        "autopar.routed_experts.default",
        t(12, 9), ids(12, 2), t(12, 2), t(6, 8, 9), t(6, 18, 8), "silu", t(6, 8),
        note="bias of the first product",
    ),
    _call(
        "autopar.routed_experts.default",
        t(12, 9), ids(12, 2), t(12, 2), t(6, 16, 9), t(6, 18, 8), "clamped_swiglu", t(6, 16), t(6, 18),
        [1.7, 0.8], note="gates between",
    ),
)  # fmt: skip

MADE = (
    _call("full", [6, 9], 1.0, dtype=F64),
    _call("zeros", [6, 9], dtype=F64),
    _call("ones", [6, 9], dtype=F64),
)
