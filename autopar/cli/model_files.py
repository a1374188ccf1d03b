"""Checks the files that MODEL names without importing torch, so that errors are reported at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from autopar.cli.flags import MODEL_HELP
from autopar.errors import InputError
from cost_models.files import text

CONFIGURATION = "hf:"
WANTED = "Pass the config.json that `model.config.save_pretrained(folder)` of transformers writes."


def check_model(words: str) -> None:
    """Raise `InputError` if MODEL cannot be parsed, or its file cannot be read."""
    if words.startswith(CONFIGURATION):
        configuration(Path(words.removeprefix(CONFIGURATION)))
        return
    where, _ = place(words)
    if where.endswith(".py"):
        source_file(Path(where))


def place(words: str) -> tuple[str, str]:
    """Split MODEL into ``file.py`` or ``package.module``, and the factory's name."""
    where, _, name = words.rpartition(":")
    if not where or not name:
        raise InputError(f"Cannot read MODEL {words!r}: write {MODEL_HELP}.")
    return where, name


def source_file(path: Path) -> Path:
    """Return the path; raise `InputError` if it is not a file."""
    if not path.is_file():
        raise InputError(
            f"There is no file {path}. Write its path relative to the current folder, or MODEL "
            "as package.module:factory."
        )
    return path


def configuration(path: Path) -> dict[str, Any]:
    """Return the content of a saved transformers configuration; raise `InputError` for other files."""
    try:
        content = json.loads(text(path))
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}. {WANTED}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a JSON configuration: {error}. {WANTED}") from None
    if not isinstance(content, dict):
        raise InputError(
            f"{path} is not a configuration: it holds a {type(content).__name__}. {WANTED}"
        )
    if "graph_digest" in content:
        raise InputError(f"{path} is a plan that autopar wrote, not a configuration. {WANTED}")
    if "model_type" not in content:
        raise InputError(f"{path} is not a configuration of a model: no model_type. {WANTED}")
    return content
