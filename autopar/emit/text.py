"""Users' text in emitted source: one line of printable characters, which ends no comment or string."""

from __future__ import annotations


def comment(text: str) -> str:
    """For behind a ``#``: what would end the line, or is not seen, stands as its escape."""
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def docstring(text: str) -> str:
    """For within three double quotes."""
    return comment(text.replace("\\", "\\\\").replace('"', '\\"'))


def literal(text: str) -> str:
    """A Python string of this value, in double quotes."""
    return f'"{docstring(text)}"'


def _escaped(character: str) -> str:
    number = ord(character)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
