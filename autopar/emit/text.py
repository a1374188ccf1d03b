"""Escapes users' text for emitted source: one printable line that cannot end a comment or a string."""

from __future__ import annotations


def comment(text: str) -> str:
    """Return text for a comment, with line ends and invisible characters escaped."""
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def docstring(text: str) -> str:
    """Return text for a docstring in triple double quotes."""
    return comment(text.replace("\\", "\\\\").replace('"', '\\"'))


def literal(text: str) -> str:
    """Return the Python literal of this string, in double quotes."""
    return f'"{docstring(text)}"'


def _escaped(character: str) -> str:
    number = ord(character)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
