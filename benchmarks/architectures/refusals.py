"""An architecture that cannot be captured: what PyTorch's own two ways of capture say of it."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from tests.architectures import ARCHITECTURES, WORKAROUNDS, Case

LIBRARIES = ("/transformers/", "/torch/")
"""Whose frames are shown."""
MOST = 3
"""So many frames of a library's are shown, the innermost."""


def refusal(name: str) -> dict[str, Any]:
    """Both tracebacks, shortened, and the workarounds that have rows of their own."""
    found = {way: attempted(take, ARCHITECTURES[name]()) for way, take in WAYS.items()}
    tried = {make.__name__: make.__doc__ for make in WORKAROUNDS.get(name, ())}
    return {"ways": found, "workarounds": tried}


def exported(model: nn.Module, inputs: Mapping[str, Any]) -> fx.GraphModule:
    """Dynamo reads the model's bytecode."""
    return torch.export.export(model, (), dict(inputs), strict=True).graph_module


def traced(model: nn.Module, inputs: Mapping[str, Any]) -> fx.GraphModule:
    """The model runs once on tensors that hold no numbers."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = {key: mode.from_tensor(value) for key, value in inputs.items()}
        return make_fx(lambda given: model(**given).loss, pre_dispatch=True)(fake)


Way = Callable[[nn.Module, Mapping[str, Any]], fx.GraphModule]
WAYS: Mapping[str, Way] = {"torch.export.export": exported, "make_fx": traced}


def attempted(take: Way, case: Case) -> str:
    """The end of its traceback, or what of a graph the values decide."""
    try:
        graph = take(case[0], case[1]).graph
    except Exception as error:
        return shortened(error)
    made = ((node, getattr(node.meta.get("val"), "shape", ())) for node in graph.nodes)
    open_ended = [
        f"  {node.name}: {node.target} of shape ({', '.join(map(str, shape))})"
        for node, shape in made
        if any(isinstance(size, torch.SymInt) for size in shape)
    ]
    return "\n".join(["No error, but sizes that only the values of a batch decide:", *open_ended])


def shortened(error: BaseException) -> str:
    """The innermost frames of transformers, then those of torch, and the error's first line."""
    frames = traceback.extract_tb(error.__traceback__)
    shown = []
    for library in LIBRARIES:
        shown += [frame for frame in frames if library in frame.filename][-MOST:]
    lines = [
        f'  File "{frame.filename.rpartition("/site-packages/")[2]}", line {frame.lineno}, '
        f"in {frame.name}\n    {frame.line}"
        for frame in shown
    ]
    told = str(error).strip().splitlines() or [""]
    cause = [line for line in told[1:] if line.startswith("Caused by")]
    return "\n".join(
        ["Traceback (shortened):", *lines, f"{type(error).__name__}: {told[0]}", *cause]
    )
