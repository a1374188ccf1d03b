"""Writes `commands.json`, from which the shell completes words without importing the commands.

Run ``python -m autopar.cli.completion.words`` after changing a command.
"""

from __future__ import annotations

import json
from typing import Any

import typer

from autopar.cli.app import app
from autopar.cli.completion.listed import LISTED
from autopar.pipeline.schedules import SCHEDULES
from autopar.request import presets
from autopar.request.options import PRECISIONS, RECOMPUTATIONS
from autopar.rules import registered
from cost_models.hardware import names

OFFERS = {
    "--preset": "preset", "--hardware": "hardware", "--schedule": "schedule",
    "--precision": "precision", "--recompute": "recompute", "--block": "module",
    "--tensor": "tensor", "--explain": "target", "target": "target", "operator": "operator",
    "name": "hardware",
}  # fmt: skip
"""Kind of an option's or argument's value; `tensor`, `module` and `target` are read from a plan file."""


def written() -> str:
    """Return the text of `commands.json`."""
    group: Any = typer.main.get_command(app)
    lists = {
        "preset": list(presets.names()), "hardware": list(names()), "schedule": sorted(SCHEDULES),
        "precision": list(PRECISIONS), "recompute": list(RECOMPUTATIONS),
        "operator": sorted(registered()),
    }  # fmt: skip
    commands = {
        name: {
            "help": (command.help or "").partition("\n\n")[0],
            "parameters": [_outlined(each) for each in command.params],
        }
        for name, command in group.commands.items()
    }
    options = [_outlined(each) for each in group.params if "completion" not in each.name]
    about = {"help": group.help or "", "lists": lists, "options": options, "commands": commands}
    return _lines(about) + "\n"


def _lines(content: Any, depth: int = 1) -> str:
    """Return JSON with one line per list of words and per parameter."""
    inside = content.values() if isinstance(content, dict) else content
    if not any(isinstance(each, dict | list) for each in inside) or "names" in content:
        return json.dumps(content)
    pad = "\n" + " " * depth
    made = [
        _lines(each, depth + 1) if isinstance(each, dict | list) else json.dumps(each)
        for each in inside
    ]
    if isinstance(content, dict):
        made = [f"{json.dumps(key)}: {text}" for key, text in zip(content, made, strict=True)]
    start, end = "{}" if isinstance(content, dict) else "[]"
    return f"{start}{pad}{f',{pad}'.join(made)}{pad[:-1]}{end}"


def _outlined(parameter: Any) -> dict[str, Any]:
    names = [*parameter.opts, *parameter.secondary_opts]
    return {
        "names": names,
        "flag": bool(getattr(parameter, "is_flag", False)),
        "multiple": bool(getattr(parameter, "multiple", False)),
        "help": getattr(parameter, "help", "") or "",
        "offers": next((OFFERS[name] for name in names if name in OFFERS), None),
    }


if __name__ == "__main__":
    LISTED.write_text(written(), encoding="utf-8")
