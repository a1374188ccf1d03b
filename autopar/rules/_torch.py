"""Access to torch's private names for the rules: properties of an operator's registration."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS

from autopar.ops.functions import NAMESPACE, applied, files_of

VERSION = torch.__version__


def schema(function: Callable[..., Any]) -> str:
    """Return an operator's schema as text; empty for a plain function."""
    return str(getattr(function, "_schema", ""))


def writes(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the arguments that an operator's schema declares as mutated."""
    arguments = getattr(getattr(function, "_schema", None), "arguments", ())
    return tuple(a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write)


def tensor_arguments(function: Callable[..., Any]) -> tuple[tuple[str, str, bool], ...]:
    """Return (name, type, has a default) of each argument."""
    arguments = getattr(getattr(function, "_schema", None), "arguments", ())
    return tuple((a.name, str(a.type), a.has_default_value()) for a in arguments)


def depends_on_values(function: Callable[..., Any], masked: bool) -> bool:
    """Return whether an operator's output shape depends on values; for indexing, only with a mask."""
    tags = getattr(function, "tags", ())
    dynamic = torch.Tag.dynamic_output_shape in tags
    indexes = str(function).startswith("aten.index")
    return (dynamic and (masked or not indexes)) or torch.Tag.data_dependent_output in tags


def is_python(op: str) -> bool:
    """Return whether an operator is registered Python code, which raises if shapes do not fit."""
    return "::".join(op.split(".")[:2]) in OPDEFS or applied(op) is not None


def overloads(namespace: str, name: str) -> tuple[str, ...]:
    """Return the overloads of an operator; empty if it is not registered."""
    try:
        packet = getattr(getattr(torch.ops, namespace), name)
    except (AttributeError, RuntimeError):
        return ()
    return tuple(packet.overloads())


def source_digest(op: str) -> str | None:
    """Return a digest of the files that define a `torch.library.custom_op`; None if unknown.

    ATen's operators change only with torch's version.
    """
    if op.startswith(("aten.", "autopar.")):
        return ""
    namespace, name, _ = op.split(".", 2)
    if namespace == NAMESPACE:
        return _digest_of(files_of(op))
    definition = OPDEFS.get(f"{namespace}::{name}")
    if definition is None:
        return None
    parts = [definition._init_fn, definition._backward_fn, definition._setup_context_fn]
    parts += definition._backend_fns.values()
    with contextlib.suppress(OSError, TypeError):
        files = {inspect.getsourcefile(inspect.unwrap(part)) for part in parts if part is not None}
        return _digest_of(sorted(map(str, files)))
    return None


def _digest_of(files: Iterable[str] | None) -> str | None:
    if files is None:
        return None
    digest = hashlib.sha256()
    with contextlib.suppress(OSError):
        for file in files:
            digest.update(Path(file).read_bytes())
        return digest.hexdigest()[:16]
    return None
