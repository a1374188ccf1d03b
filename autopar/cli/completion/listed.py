"""Builds a Typer application from `commands.json`, for completion and early checks without torch.

`words.py` writes the file: names, flags, and the kinds of their values.  A test fails if it is outdated.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from autopar.cli.completion.names import KINDS, names_in

LISTED = Path(__file__).with_name("commands.json")
Lists = Mapping[str, Sequence[str]]
Outline = Sequence[Mapping[str, Any]]


def listed() -> typer.Typer:
    """Return an application whose commands can be completed, and only check the values on the line."""
    content = json.loads(LISTED.read_text(encoding="utf-8"))
    app = typer.Typer(
        help=content["help"],
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
    )
    app.callback()(_function(content["options"], content["lists"]))
    for name, each in content["commands"].items():
        made = _function(each["parameters"], content["lists"])
        app.command(name, help=each["help"])(made)
    return app


def _function(every: Outline, lists: Lists) -> Callable[..., None]:
    """Return a function with these parameters, which checks the values that it is called with."""

    def checked(**given: Any) -> None:
        from autopar.cli.early import check  # not needed for completion

        check(given)

    taken = [_parameter(each, lists) for each in every]
    checked.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]
    checked.__annotations__ = {each.name: each.annotation for each in taken}
    return checked


def _parameter(each: Mapping[str, Any], lists: Lists) -> inspect.Parameter:
    names, offering = each["names"], _offering(each["offers"], lists)
    if names[0].startswith("-"):
        kind: Any = bool if each["flag"] else list[str] if each["multiple"] else str
        start = False if each["flag"] else None
        info = typer.Option(start, *_declared(names), help=each["help"], autocompletion=offering)
    else:
        kind, info = str, typer.Argument(None, help=each["help"], autocompletion=offering)
    name = names[0].lstrip("-").replace("-", "_")
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=info, annotation=kind)


def _declared(names: Sequence[str]) -> list[str]:
    """Return the names as typer declares them; a flag and its opposite as ``--bound/--no-bound``."""
    against = [name for name in names if name.startswith("--no-")]
    return ["/".join(names)] if against else list(names)


def _offering(what: str | None, lists: Lists) -> Callable[..., list[str]] | None:
    """Return the function that completes the beginning of a word; None: the shell completes files."""
    if what is None:
        return None

    def offered(ctx: typer.Context, incomplete: str) -> list[str]:
        known = names_in(_plan(ctx), what) if what in KINDS else lists[what]
        return [each for each in known if each.startswith(incomplete)]

    return offered


def _plan(ctx: typer.Context) -> str | None:
    """Return the plan file on the line; if an option lacks its value, it is not parsed yet."""
    return ctx.params.get("plan") or next(iter(ctx.args), None)
