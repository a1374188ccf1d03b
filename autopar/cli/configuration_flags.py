"""The flags of a configuration of parallel training, in the terms that other tools share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

CONFIG = Annotated[
    Path | None,
    typer.Option(
        help="File of Megatron-LM arguments (.sh, .txt), torchtitan (.toml), accelerate (.yaml) or "
        "DeepSpeed (.json); flags take precedence."
    ),
]
TP = Annotated[int | None, typer.Option(min=1, help="Tensor-parallel ranks.")]
PP = Annotated[int | None, typer.Option(min=1, help="Pipeline-parallel ranks.")]
DP = Annotated[int | None, typer.Option(min=1, help="Data-parallel ranks.")]
CP = Annotated[int | None, typer.Option(min=1, help="Context-parallel ranks.")]
EP = Annotated[int | None, typer.Option(min=1, help="Expert-parallel ranks.")]
DEVICES = Annotated[
    int | None, typer.Option(min=1, help="Number of devices, instead of --dp or the file's.")
]
VIRTUAL = Annotated[int | None, typer.Option(min=1, help="Stages on each pipeline-parallel rank.")]
LAYERS = Annotated[
    str | None, typer.Option(help="Layers of each stage, such as 7,8,8,7; default: equal.")
]
MICROBATCH = Annotated[
    int | None, typer.Option(min=1, help="Samples of a data-parallel rank in a microbatch.")
]
GLOBAL_BATCH = Annotated[int | None, typer.Option("--batch", min=1, help="Global batch.")]
SCHEDULE = Annotated[
    str | None, typer.Option(help="Pipeline schedule: 1f1b, interleaved, gpipe, zb-h1, ...")
]
ZERO = Annotated[
    int | None,
    typer.Option(
        min=0, max=3, help="Stage of ZeRO: 1 is Megatron-LM's distributed optimizer, 3 is FSDP."
    ),
]
REPLICAS = Annotated[
    int | None,
    typer.Option(min=1, help="Groups of data-parallel ranks; each group shards separately (HSDP)."),
]
SEQUENCE_PARALLEL = Annotated[
    bool, typer.Option("--sequence-parallel", help="Split activations along the sequence as well.")
]
RECOMPUTE = Annotated[
    str | None,
    typer.Option(help="none, selective or full as in `plan`; attention: Megatron-LM's selective."),
]
OPTIMIZER = Annotated[
    str | None, typer.Option(help="Class in torch.optim, as in `plan`; default: AdamW.")
]
