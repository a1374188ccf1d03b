"""Files that people hand over: their text, and the first thing that is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autopar.errors import AutoparError, PlanError
from cost_models.files import text

if TYPE_CHECKING:
    from pydantic import ValidationError


def text_of(path: str | Path, what: str, error: type[AutoparError] = PlanError) -> str:
    """The text of a file; `error` says that `what` cannot be read, and why."""
    try:
        return text(path)
    except OSError as reason:
        raise error(f"Cannot read {what} {path}: {reason.strerror or reason}.") from None
    except UnicodeDecodeError as reason:
        raise error(f"Cannot read {what} {path}: it is no text ({reason}).") from None
    except ValueError as reason:
        raise error(f"Cannot read {what} {str(path)!r}: {reason}.") from None


def first_fault(found: ValidationError) -> str:
    """``place: what is wrong there``, of the first of all faults."""
    first = found.errors()[0]
    place = ".".join(map(str, first["loc"])) or "the file"
    return f"{place}: {first['msg'].rstrip('.')}"
