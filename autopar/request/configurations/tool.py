"""The registry of tools whose configurations autopar reads and writes.

``TOOLS.add("mine", Tool(...))`` registers your own (docs/extending.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from autopar.errors import InputError
from autopar.request.configurations import accelerate, deepspeed, megatron, torchtitan
from autopar.request.configurations.configuration import Configuration
from autopar.request.configurations.exchanged import Read, Written
from autopar.utils.io import text_of
from autopar.utils.registry import Registry


@dataclass(frozen=True)
class Tool:
    """A tool that trains in parallel.

    suffixes   of the names of its files; "" is a name without suffix
    read       (text, source) -> the configuration that a file states; `source` names the file in
               messages.  Raises `InputError` for other texts
    write      (configuration, devices of a host) -> the file of the nearest configuration
    """

    suffixes: tuple[str, ...]
    read: Callable[[str, str], Read]
    write: Callable[[Configuration, int], Written]


TOOLS: Registry[Tool] = Registry("tool", {
    "megatron": Tool(("", ".sh", ".bash", ".txt"), megatron.read, megatron.write),
    "torchtitan": Tool((".toml",), torchtitan.read, torchtitan.write),
    "accelerate": Tool((".yaml", ".yml"), accelerate.read, accelerate.write),
    "deepspeed": Tool((".json",), deepspeed.read, deepspeed.write),
})  # fmt: skip


def read_file(name: str | Path) -> Read:
    """Read a tool's configuration file; the tool is known by the file's suffix.

    If several tools have the suffix, the one that was added last reads it.
    """
    path = Path(name)
    found = [tool for tool in TOOLS.values() if path.suffix in tool.suffixes]
    if not found:
        known = "; ".join(
            f"{name}: {' '.join(filter(None, t.suffixes))}" for name, t in TOOLS.items()
        )
        raise InputError(
            f"{path} is no configuration that autopar reads, by its suffix {path.suffix!r}. It reads "
            f"{known}."
        )
    return found[-1].read(text_of(path, "the configuration", InputError), str(path))
