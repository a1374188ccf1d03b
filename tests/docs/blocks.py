"""A page of documentation as the list of its code blocks; a block that no rule knows is an error.

| block | what becomes of it |
| --- | --- |
| any with ``title="name"`` | is saved under that name |
| ``python`` | runs; all of a page share their names |
| ``python`` that begins with ``# torchrun --nproc-per-node N file.py`` | is saved and runs so |
| ``sh`` | runs line by line; ``# exits with 1`` behind a line says that it fails |
| ``text`` right behind one that runs | is its output, up to ``...`` and spaces |
| ``json``, ``toml`` | parse |

An HTML comment in the line before says more: ``<!-- slow -->`` leaves a block to the slow run,
``<!-- excerpt of path -->`` compares it with a file of the page or of the repository, and
``<!-- checked by tests/... -->`` names the test of a ``text`` that is nobody's output, or of commands
that do not run here.  What a command wrote, between ``<!-- written by ... -->`` and
``<!-- until here -->``, may hold such texts: whether it is still what the command writes is another
test's business.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parent.parent.parent
CHECKED = "checked by "
KINDS = ("python", "sh", "text", "json", "toml")
TORCHRUN = re.compile(r"# (torchrun .*\.py.*)")


class PageError(AssertionError):
    """A block is wrong; the message begins with ``page:line``."""


@dataclass(frozen=True)
class Block:
    """One fenced block; `behind` is the block that stands directly before it."""

    where: str
    kind: str
    code: str
    title: str = ""
    comment: str = ""
    behind: Block | None = None

    @property
    def slow(self) -> bool:
        """Not part of the everyday run."""
        return self.comment == "slow"

    @property
    def is_checked(self) -> bool:
        """Whether a test of its own looks at it."""
        return self.comment.startswith(CHECKED)

    @property
    def launch(self) -> str:
        """The command in its first line that starts it on several ranks, or nothing."""
        found = TORCHRUN.match(self.code) if self.kind == "python" and not self.title else None
        return found[1] if found else ""

    @property
    def runs(self) -> bool:
        """Whether it prints something that a text can be compared with."""
        stays = self.title or self.comment.startswith("excerpt of ")
        return self.kind in ("python", "sh") and not stays


def blocks(text: str, page: str) -> list[Block]:
    """All blocks of a page, in order."""
    found: list[Block] = []
    before: Block | str | None = None
    generated = False
    for token in MarkdownIt().parse(text):
        where = f"{page}:{token.map[0] + 1}" if token.map else page
        if token.type == "code_block" and not generated:
            raise PageError(
                f"{where}: a block without a fence escapes: put ```sh or the like around it"
            )
        if token.type == "html_block":
            before = token.content.strip().removeprefix("<!--").removesuffix("-->").strip()
            generated = before.startswith("written by") or (generated and before != "until here")
            continue
        if token.type == "fence":
            block = _block(where, token.info, token.content, before)
            if block.kind == "text" and not generated:
                _check_text(block)
            if block.is_checked:
                _check_test(block)
            found.append(block)
        before = found[-1] if token.type == "fence" else None
    return found


def _block(where: str, info: str, code: str, before: Block | str | None) -> Block:
    kind, _, rest = info.partition(" ")
    options = dict(word.partition("=")[::2] for word in shlex.split(rest))
    if kind not in KINDS or options.keys() - {"title"}:
        raise PageError(f"{where}: no rule says how to test a block {info!r}; there are {KINDS}")
    comment = before if isinstance(before, str) else ""
    behind = before if isinstance(before, Block) else None
    return Block(where, kind, code, options.get("title", ""), comment, behind)


def _check_text(block: Block) -> None:
    """A text is an output, a file, an excerpt, or what another test looks at."""
    if block.title or block.comment.startswith("excerpt of "):
        return
    if block.comment and not block.is_checked:
        raise PageError(f"{block.where}: there is no such test: {block.comment!r}")
    if not block.comment and not (block.behind and block.behind.runs):
        raise PageError(f"{block.where}: a text that nothing prints: <!-- checked by tests/... -->")


def _check_test(block: Block) -> None:
    """The test that a comment names is there."""
    name = block.comment.removeprefix(CHECKED).split()[0]
    if not (ROOT / name).is_file():
        raise PageError(f"{block.where}: there is no such test: {block.comment!r}")


def check_data(block: Block) -> None:
    """JSON and TOML parse."""
    try:
        if block.kind == "json":
            json.loads(block.code)
        if block.kind == "toml":
            tomllib.loads(block.code)
    except ValueError as error:
        raise PageError(f"{block.where}: {error}") from None


def lines(block: Block) -> list[tuple[str, int]]:
    """The commands of a shell block, each with the exit code that it should have."""
    joined = re.sub(r"\\\n\s*", "", block.code).splitlines()
    found = []
    for line in joined:
        command, _, code = line.partition("# exits with ")
        if command.strip() and not command.lstrip().startswith("#"):
            found.append((command.strip(), int(code or 0)))
    return found
