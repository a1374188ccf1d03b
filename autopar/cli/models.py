"""MODEL on the command line: ``file.py:factory``, ``package.module:factory`` or ``hf:CONFIG.json``."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from autopar.errors import InputError

MODEL_HELP = "file.py:factory, package.module:factory, or hf:CONFIG.json"


@dataclass(frozen=True)
class Loaded:
    """What a MODEL argument gives."""

    model: nn.Module
    inputs: Any = None
    loss: Callable[..., Any] | None = None


def load(text: str, batch: int | None, sequence: int | None) -> Loaded:
    """Build the model; Hugging Face configurations need --batch and --sequence."""
    if text.startswith("hf:"):
        return _from_config(Path(text.removeprefix("hf:")), batch, sequence)
    where, _, name = text.rpartition(":")
    if not where or not name:
        raise InputError(f"Cannot read MODEL {text!r}: write {MODEL_HELP}.")
    module = _file(Path(where)) if where.endswith(".py") else _module(where)
    return _called(module, name, where)


def _file(path: Path) -> Any:
    if not path.is_file():
        raise InputError(f"There is no file {path}.")
    name = f"autopar_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _module(name: str) -> Any:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise InputError(f"Cannot import {name}: {type(error).__name__}: {error}") from error


def _called(module: Any, name: str, where: str) -> Loaded:
    factory = getattr(module, name, None)
    if not callable(factory):
        close = difflib.get_close_matches(name, dir(module), 1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise InputError(f"{where} has no function {name!r}.{hint}")
    try:
        made = factory()
    except Exception as error:
        raise InputError(f"{where}:{name}() raised {type(error).__name__}: {error}") from error
    parts = made if isinstance(made, tuple) else (made,)
    if not isinstance(parts[0], nn.Module) or len(parts) > 3:
        raise InputError(
            f"{where}:{name}() returned {type(made).__name__}; it must return the model, or (model, "
            "example_inputs), or (model, example_inputs, loss)."
        )
    return Loaded(*parts)


def _from_config(path: Path, batch: int | None, sequence: int | None) -> Loaded:
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error}.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a JSON configuration: {error}.") from None
    if batch is None or sequence is None:
        raise InputError("hf: models need --batch N and --sequence N, the global batch.")
    import transformers

    names = content.get("architectures") if isinstance(content, dict) else None
    found = getattr(transformers, names[0], None) if names else None
    if found is None:
        raise InputError(
            f"{path}: 'architectures' must name a class of transformers, such as "
            f"['GPT2LMHeadModel']; it is {names}."
        )
    kind = content.get("model_type")
    if kind not in transformers.CONFIG_MAPPING:
        raise InputError(f"{path}: transformers knows no model_type {kind!r}.")
    config = transformers.CONFIG_MAPPING[kind].from_dict(content)
    with torch.device("meta"):
        model = found(config)
    ids = torch.zeros(batch, sequence, dtype=torch.int64, device="meta")
    return Loaded(model.train(), {"input_ids": ids, "labels": ids})
