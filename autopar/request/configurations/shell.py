"""Reads the arguments in a shell script, without running it.

Arguments are taken from command lines, arrays and strings, in the order of the text.  Variables are
replaced by what the script assigns to them; whole-number arithmetic is computed.  Branches are not
decided: their arguments count and are marked, and a variable that is set to several values has none.
"""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from autopar.errors import InputError

_ASSIGNED = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
_ARITHMETIC = re.compile(r"\$\(\((.*?)\)\)", re.DOTALL)
_HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?.*?^\s*\1\s*$", re.DOTALL | re.MULTILINE)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?:\[[@*]\])?(?::?[-=]([^{}]*))?\})")
_OPENING, _CLOSING = ("if", "case"), ("fi", "esac")
_ENDS = frozenset(
    [";", ";;", "&&", "||", "|", "&", "then", "else", "elif", "do", "done", "fi", "esac", "\\"]
)
_OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.floordiv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
MOST = 50
"""Replacements of variables in one word; variables that name themselves would be replaced for ever."""


@dataclass(frozen=True)
class Argument:
    """One argument: its name without leading dashes, in lower case, with dashes for underscores.

    `several` are the values that branches give to a variable in it; then it has no value of its own.
    """

    name: str
    values: tuple[str, ...] = ()
    in_branch: bool = False
    several: tuple[str, ...] = ()


def arguments(text: str, source: str) -> tuple[Argument, ...]:
    """Return the arguments in a script, or in a plain list of them; `source` names it in messages.

    Raise `InputError` for a text that no shell could read.
    """
    words = tuple(_words(text, source))
    known = _assignments(words)
    return tuple(_replaced(each, known) for each in _arguments(words))


@dataclass(frozen=True)
class _Word:
    text: str
    in_branch: bool
    is_assigned: bool = False
    """Whether it is the value of a variable, or one of the words of an array."""
    ends: bool = False
    """Whether no argument's values go on behind it."""


def _words(text: str, source: str) -> Iterator[_Word]:
    """Yield the words of a script, those of quoted strings of arguments one by one."""
    depth, in_array = 0, False
    for token in _tokens(text, source):
        depth += (token in _OPENING) - (token in _CLOSING)
        assigned = _ASSIGNED.fullmatch(token)
        if assigned and assigned[2].startswith("("):
            in_array, token = True, assigned[2][1:]
        elif assigned and not token.startswith("-") and "--" not in assigned[2]:
            yield _Word(token.rstrip(";"), depth > 0, is_assigned=True, ends=True)
            continue
        elif assigned and not token.startswith("-"):
            token = assigned[2]
        closes = in_array and token.endswith(")") and not token.endswith("))")
        token = token.removesuffix(")") if closes else token
        inside = token.split() if "--" in token else [token]
        for word in filter(None, inside):
            yield _Word(word, depth > 0, ends=word in _ENDS)
        in_array = in_array and not closes
        if closes or assigned:
            yield _Word("", depth > 0, ends=True)


def _tokens(text: str, source: str) -> Iterator[str]:
    """Yield the tokens of a shell, without comments, heredocs, and spaces inside of arithmetic."""
    text = _HEREDOC.sub("", text)
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines) + "\n")
    joined = _ARITHMETIC.sub(lambda found: f"$(({_with_dollars(found[1])}))", joined)
    lexer = shlex.shlex(joined, posix=True)
    lexer.whitespace_split = True
    try:
        yield from lexer
    except ValueError as error:
        raise InputError(
            f"{source} cannot be read as a list of arguments or a shell script: {error}. Close its "
            "quotes, or pass a file with the arguments alone."
        ) from None


def _with_dollars(expression: str) -> str:
    """Return an arithmetic expression without spaces, in which every variable has its dollar."""
    return re.sub(r"(?<![\w${])([A-Za-z_]\w*)", r"$\1", "".join(expression.split()))


def _assignments(words: tuple[_Word, ...]) -> Mapping[str, tuple[str, ...]]:
    """Return the distinct values of each variable, in their order."""
    found: dict[str, dict[str, None]] = {}
    for word in words:
        if word.is_assigned and (assigned := _ASSIGNED.fullmatch(word.text)):
            found.setdefault(assigned[1], {})[assigned[2]] = None
    return {name: tuple(values) for name, values in found.items()}


def _arguments(words: tuple[_Word, ...]) -> Iterator[Argument]:
    """Yield arguments with the words that follow them, variables not replaced."""
    current: Argument | None = None
    for word in words:
        is_name = re.fullmatch(r"--[A-Za-z][\w-]*(=.*)?", word.text, re.DOTALL)
        if current is not None and (is_name or word.ends):
            yield current
            current = None
        if is_name:
            name, equals, value = word.text[2:].partition("=")
            values = (value,) if equals else ()
            current = Argument(name.replace("_", "-").lower(), values, word.in_branch)
        elif current is not None and word.text:
            current = replace(current, values=(*current.values, word.text))
    if current is not None:
        yield current


def _replaced(argument: Argument, known: Mapping[str, tuple[str, ...]]) -> Argument:
    """Return the argument with its first value's variables replaced, as far as they are known."""
    if not argument.values:
        return argument
    value, *others = argument.values
    for _ in range(MOST):
        found = _VARIABLE.search(value)
        if found is None:
            break
        of_script = known.get(found[1] or found[2], ())
        if len(of_script) > 1:
            return replace(argument, several=of_script)
        if not of_script and found[3] is None:
            break
        value = value[: found.start()] + (of_script or (found[3],))[0] + value[found.end() :]
    return replace(argument, values=(_computed(value), *others))


def _computed(value: str) -> str:
    """Return a value with its arithmetic computed, if all of it is whole numbers."""
    return _ARITHMETIC.sub(lambda found: _sum(found[1]) or found[0], value)


def _sum(expression: str) -> str | None:
    try:
        return str(_number(ast.parse(expression, mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, KeyError, RecursionError, MemoryError):
        return None


def _number(node: ast.expr) -> int:
    """Return the value of an expression of whole numbers; raise `ValueError`, `KeyError` for others."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp):
        return int(_OPERATORS[type(node.op)](_number(node.left), _number(node.right)))
    raise ValueError
