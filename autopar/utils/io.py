"""Reads files that users pass, and describes what is invalid in them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autopar.errors import AutoparError, PlanError
from cost_models.files import text

if TYPE_CHECKING:
    from pydantic import ValidationError


def text_of(path: str | Path, what: str, error: type[AutoparError] = PlanError) -> str:
    """Return the text of a file; raise `error` with the reason if `what` cannot be read."""
    try:
        return text(path)
    except OSError as reason:
        raise error(f"Cannot read {what} {path}: {reason.strerror or reason}.") from None
    except UnicodeDecodeError as reason:
        raise error(f"Cannot read {what} {path}: it is not text ({reason}).") from None
    except ValueError as reason:
        raise error(f"Cannot read {what} {str(path)!r}: {reason}.") from None


def first_fault(found: ValidationError) -> str:
    """Return the first validation error as ``place: message``."""
    first = found.errors()[0]
    place = ".".join(map(str, first["loc"])) or "the file"
    return f"{place}: {first['msg'].rstrip('.')}"
