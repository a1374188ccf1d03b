"""Encodes states of schedulers, scalers, samplers and generators as JSON and tensors, without pickle.

Types that JSON lacks are encoded as ``{"$": kind, ...}``.  Other objects are refused when saving.
"""

from __future__ import annotations

import base64
import json
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor

from autopar.errors import CheckpointError
from autopar.runtime.checkpoints import disk

KIND = "$"
_MAPPINGS: dict[str, type] = {"dict": dict, "Counter": Counter, "OrderedDict": OrderedDict}
_SEQUENCES: dict[str, type] = {"tuple": tuple, "set": set, "frozenset": frozenset}
Tensors = dict[str, torch.Tensor]


def encode(value: Any, where: str, tensors: Tensors) -> Any:
    """Encode a value as JSON; tensors are added to `tensors` as bytes.

    Raise `CheckpointError` for a value that cannot be encoded; the message names its place.
    """
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, np.generic):
        return encode(value.item(), where, tensors)
    if isinstance(value, float):
        return {KIND: "float", "hex": value.hex()}
    if type(value) is list:
        return [encode(each, f"{where}[{i}]", tensors) for i, each in enumerate(value)]
    if isinstance(value, Mapping) and (
        type(value).__name__ in _MAPPINGS or type(value) is defaultdict
    ):
        pairs = [
            [encode(key, where, tensors), encode(each, f"{where}[{key!r}]", tensors)]
            for key, each in value.items()
        ]
        name = "dict" if type(value) is defaultdict else type(value).__name__
        return {KIND: name, "pairs": pairs}
    if type(value).__name__ in _SEQUENCES:
        return {KIND: type(value).__name__, "of": encode(list(value), where, tensors)}
    return _encode_bytes(value, where, tensors)


def _encode_bytes(value: Any, where: str, tensors: Tensors) -> Any:
    if isinstance(value, (bytes, bytearray)):
        return {KIND: "bytes", "base64": base64.b64encode(value).decode()}
    if isinstance(value, complex):
        return {KIND: "complex", "of": [value.real.hex(), value.imag.hex()]}
    if isinstance(value, (torch.dtype, torch.device)):
        return {KIND: type(value).__name__, "name": str(value).removeprefix("torch.")}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        made = encode(torch.from_numpy(np.ascontiguousarray(value)), where, tensors)
        return made | {KIND: "array", "shape": list(value.shape)}
    if isinstance(value, torch.Tensor) and not isinstance(value, DTensor) and not value.is_meta:
        flat = value.detach().cpu().contiguous().reshape(-1)
        name = f"t{len(tensors)}"
        tensors[name] = flat.view(torch.uint8).clone() if flat.numel() else flat.new_empty(0).byte()
        dtype = str(value.dtype).removeprefix("torch.")
        return {KIND: "tensor", "name": name, "dtype": dtype, "shape": list(value.shape)}
    what = "a DTensor: save its full_tensor()" if isinstance(value, DTensor) else type(value)
    raise CheckpointError(
        f"{where} is {what}, which a checkpoint cannot hold: it holds numbers, strings, bytes, "
        "lists, dicts and tensors. Convert it to one of these, or leave it out."
    )


def decode(value: Any, tensors: Tensors) -> Any:
    """Decode what `encode` returned."""
    if isinstance(value, list):
        return [decode(each, tensors) for each in value]
    if not isinstance(value, dict):
        return value
    kind = value[KIND]
    if kind == "float":
        return float.fromhex(value["hex"])
    if kind in _MAPPINGS:
        pairs = [(decode(key, tensors), decode(each, tensors)) for key, each in value["pairs"]]
        return _MAPPINGS[kind](dict(pairs))
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](decode(value["of"], tensors))
    if kind == "bytes":
        return base64.b64decode(value["base64"])
    if kind == "complex":
        return complex(*map(float.fromhex, value["of"]))
    if kind == "device":
        return torch.device(value["name"])
    dtype = getattr(torch, value["name"] if kind == "dtype" else value["dtype"])
    if not isinstance(dtype, torch.dtype):
        raise CheckpointError(f"{dtype!r} is not a dtype.")
    if kind == "dtype":
        return dtype
    found = tensors[value["name"]].view(dtype).reshape(value["shape"]).clone()
    return found.numpy() if kind == "array" else found


def write(folder: Path, name: str, parts: Mapping[str, Any]) -> None:
    """Write ``name.json`` and, if there are tensors, ``name.safetensors``; errors name the part."""
    tensors: Tensors = {}
    pairs = [[part, encode(value, part, tensors)] for part, value in parts.items()]
    text = json.dumps({KIND: "dict", "pairs": pairs})
    disk.write(folder / f"{name}.json", text.encode("utf-8", "surrogatepass"))
    if tensors:
        save_file(tensors, folder / f"{name}.safetensors")
        disk.synchronise(folder / f"{name}.safetensors")


def read(folder: Path, name: str) -> Any:
    """Read what `write` wrote; raise `CheckpointError` if it is damaged."""
    path = folder / f"{name}.json"
    try:
        content = json.loads(path.read_bytes().decode("utf-8", "surrogatepass"))
        file = folder / f"{name}.safetensors"
        return decode(content, load_file(file) if file.exists() else {})
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"{path} is damaged: {type(error).__name__}: {error}. Use another checkpoint."
        ) from None
