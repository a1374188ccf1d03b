"""Values that files must not get away with, and what is changed to them."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

MARKER = "AUTOPAR_RAN_WHAT_IT_READ"
CODE = f"__import__('os').environ.__setitem__('{MARKER}', '1')"
TEXTS = (
    f'""" + str({CODE}) + """', f"'''\n{CODE}\n'''", f"x\n{CODE}\n", f"x\r{CODE}\r", f"x\x0c\n{CODE}",
    f"x\u2028{CODE}", f"x\x85{CODE}", f'\\"""\n{CODE}', f'x"); {CODE}; ("', f"batch_norm({CODE})",
    f"x() or {CODE} or x", "../../../tmp/x", "/etc/passwd", "", "\0", "\ud800", "é" * 50, "class",
    "__class__", "os:system", "builtins:exec", "\\", "{0.__class__}", "[bold]", "\x1b[2J",
    "a" * 100_000,
)  # fmt: skip
NUMBERS = (-1, 0, 1, 2**63, 10**300, -(10**30), 0.5, 1e308, float("nan"), float("inf"), True)
OTHERS: tuple[Any, ...] = (None, [], {}, [[]], {"a": 1}, [1, "x", None], "")


def value(chance: random.Random) -> Any:
    """Of any kind."""
    return copy.deepcopy(chance.choice((*TEXTS, *NUMBERS, *OTHERS)))


def mutated(content: Any, chance: random.Random, times: int = 1) -> Any:
    """The same JSON with some of its values, or keys, changed."""
    made = copy.deepcopy(content)
    for _ in range(times):
        places = list(_places(made))
        if not places:
            return value(chance)
        home, key = chance.choice(places)
        how = chance.random()
        if how < 0.7:
            home[key] = value(chance)
        elif how < 0.85 or isinstance(home, list):
            del home[key]
        else:
            home[str(chance.choice(TEXTS))] = home.pop(key)
    return made


def _places(content: Any) -> list[tuple[Any, Any]]:
    keys = content if isinstance(content, dict) else range(len(content))
    found = [(content, key) for key in keys]
    for _, key in list(found):
        if isinstance(content[key], (dict, list)):
            found += _places(content[key])
    return found


def bytes_of(content: Any, chance: random.Random) -> bytes:
    """As JSON, now and then damaged as bytes."""
    text = json.dumps(content)
    how = chance.random()
    if how < 0.05:
        return b"\xff\xfe" + text.encode("utf-16-le", "surrogatepass")
    if how < 0.1:
        return text[: chance.randrange(len(text))].encode("utf-8", "surrogatepass")
    if how < 0.15:
        return b"[" * 100_000
    if how < 0.2:
        return text.replace("1", "9" * 5000, 1).encode()
    if how < 0.25:
        return ("\ufeff" + text.replace("\n", "\r\n")).encode()
    if how < 0.3:
        place = chance.randrange(len(text))
        return text[:place].encode() + bytes([chance.randrange(256)]) + text[place + 1 :].encode()
    return text.encode()


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path
