"""Loads MODEL: ``file.py:factory``, ``package.module:factory`` or ``hf:CONFIG.json``."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from autopar.cli.huggingface import from_config
from autopar.cli.model_files import CONFIGURATION, place, source_file
from autopar.cli.output import working
from autopar.errors import InputError
from autopar.utils.suggest import near

TORCH = str(Path(inspect.getfile(torch)).parent)


@dataclass(frozen=True)
class Loaded:
    """The result of a MODEL argument; `inputs` is None if the model provides its own."""

    model: nn.Module
    inputs: Any = None
    loss: Callable[..., Any] | None = None


def load(text: str, batch: int | None, sequence: int | None) -> Loaded:
    """Build the model, with a progress display.

    Hugging Face configurations need --batch and --sequence.
    """
    with working("building the model"):
        return built(text, batch, sequence)


def built(text: str, batch: int | None, sequence: int | None) -> Loaded:
    """Build the model without showing progress, for one of many processes on a terminal.

    Output of the user's code goes to standard error: standard output is for the command's results.
    """
    with contextlib.redirect_stdout(sys.stderr):
        return _loaded(text, batch, sequence)


def _loaded(text: str, batch: int | None, sequence: int | None) -> Loaded:
    if text.startswith(CONFIGURATION):
        return Loaded(*from_config(Path(text.removeprefix(CONFIGURATION)), batch, sequence))
    if batch is not None or sequence is not None:
        raise InputError(
            "--batch and --sequence are for hf: models; a factory returns its own example inputs."
        )
    where, name = place(text)
    module = _file(source_file(Path(where))) if where.endswith(".py") else _module(where)
    return _checked(_made(module, name, where), f"{where}:{name}()")


def _file(path: Path) -> ModuleType:
    name = f"autopar_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _on_path(path.parent)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise InputError(f"{path} cannot be imported: {_error_text(error)}") from error
    return module


def _module(name: str) -> ModuleType:
    _on_path(Path.cwd())
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise InputError(f"Cannot import {name}: {_error_text(error)}") from error


def _on_path(folder: Path) -> None:
    """Add the folder to the module search path, as ``python file.py`` would."""
    if str(folder.resolve()) not in sys.path:
        sys.path.insert(0, str(folder.resolve()))


def _made(module: ModuleType, name: str, where: str) -> Any:
    factory = getattr(module, name, None)
    if not callable(factory):
        known = [each for each in dir(module) if callable(getattr(module, each))]
        raise InputError(f"{where} has no function {name!r}.{near(name, known)}")
    try:
        return factory()
    except (Exception, SystemExit) as error:
        raise InputError(
            f"{where}:{name}() raised {_error_text(error)}{_on_meta(error)}"
        ) from error


def _on_meta(error: BaseException) -> str:
    """Return advice if the error is due to reading values of meta tensors, else an empty string."""
    if not isinstance(error, (RuntimeError, NotImplementedError)) or "meta" not in str(error):
        return ""
    return (
        "\nUnder torch.device('meta') tensors have shapes and no values. Compute with Python numbers "
        "what decides shapes, make such tensors with device='cpu', or build the model without "
        "torch.device('meta')."
    )


def _checked(made: Any, called: str) -> Loaded:
    parts = made if isinstance(made, tuple) else (made,)
    if not 1 <= len(parts) <= 3 or not isinstance(parts[0], nn.Module):
        raise InputError(
            f"{called} returned {_kinds(made)}; it must return the model, or (model, "
            "example_inputs), or (model, example_inputs, loss)."
        )
    loaded = Loaded(*parts)
    if not isinstance(loaded.inputs, (Mapping, tuple, torch.Tensor, type(None))):
        raise InputError(
            f"{called} returned {type(loaded.inputs).__name__} as example inputs; return a dict of "
            "keyword arguments or a tuple."
        )
    if loaded.loss is not None and not callable(loaded.loss):
        raise InputError(f"{called} returned {type(loaded.loss).__name__} as loss, not a callable.")
    return loaded


def _kinds(made: Any) -> str:
    if isinstance(made, tuple):
        return f"({', '.join(type(part).__name__ for part in made)})"
    return type(made).__name__


def _error_text(error: BaseException) -> str:
    """Return the error's text with the innermost line of its traceback outside torch and this file."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({error.filename}:{error.lineno})"
    at = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if not file.startswith(("<frozen", TORCH, __file__)):
            at = f" ({file}:{line})"
    return f"{type(error).__name__}: {error}{at}"
