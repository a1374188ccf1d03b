"""Escapes users' text for emitted source: one printable line that cannot end a comment or a string."""

from __future__ import annotations


def comment(text: str) -> str:
    """Return text for a comment, with line ends and invisible characters escaped."""
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def docstring(text: str) -> str:
    """Return text for a docstring in triple double quotes, whose value shows the escapes.

    Python from 3.13 on does not compile a docstring with an unpaired surrogate in its value.
    """
    return _quoted(comment(text))


def literal(text: str) -> str:
    """Return the Python literal of this string, in double quotes."""
    return f'"{comment(_quoted(text))}"'


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _escaped(character: str) -> str:
    number = ord(character)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
