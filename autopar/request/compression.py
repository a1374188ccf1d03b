"""The `compression=` option: gradients travel as fewer bytes, and steps are no longer exact."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

from autopar.errors import InputError
from autopar.utils.messages import argument, of_python, quoted

Method = Literal["powersgd", "int8", "fp8"]
METHODS: tuple[Method, ...] = get_args(Method)
_TEXT = re.compile(r"(?P<method>[a-z0-9]+)(:(?P<rank>\d+))?(@(?P<axes>\w+(,\w+)*))?")


@dataclass(frozen=True)
class Compression:
    """How gradients are compressed where ranks sum them once per step.

    - `method`: ``"powersgd"`` (Vogels, Karimireddy, Jaggi, NeurIPS 2019) sends two factors of `rank`
      columns in place of each matrix; ``"int8"`` and ``"fp8"`` send one byte in place of each element.
      Each adds what it left out of a step to the gradient of the next step (error feedback).
    - `rank`: columns of PowerSGD's factors.
    - `axes`: names of the mesh axes over which gradients travel compressed; (): all.
    - `after`: number of backwards that synchronise gradients exactly, before the first compressed one.
    """

    method: Method = "powersgd"
    rank: int = 4
    axes: tuple[str, ...] = ()
    after: int = 0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InputError(_unknown(self.method))
        for name, least in (("rank", 1), ("after", 0)):
            number = getattr(self, name)
            if not isinstance(number, int) or isinstance(number, bool) or number < least:
                raise InputError(
                    f"Compression({name}={number!r}): pass a whole number, at least {least}."
                )
        axes = (self.axes,) if isinstance(self.axes, str) else tuple(self.axes)
        object.__setattr__(self, "axes", axes)

    @classmethod
    def of(cls, given: Any) -> Compression | None:
        """Parse None, a `Compression`, or a text such as ``"int8"`` or ``"powersgd:8@node"``."""
        if given is None or isinstance(given, Compression):
            return given
        match = _TEXT.fullmatch(given) if isinstance(given, str) else None
        if match is None or match["method"] not in METHODS:
            raise InputError(_unknown(given))
        if match["rank"] and match["method"] != "powersgd":
            raise InputError(
                f"{argument('compression', given)}: {match['method']} has no rank; pass "
                f"{argument('compression', match['method'])}."
            )
        axes = tuple(match["axes"].split(",")) if match["axes"] else ()
        rank = {"rank": int(match["rank"])} if match["rank"] else {}
        return cls(match["method"], axes=axes, **rank)

    def selects(self, axis: str) -> bool:
        """Whether gradients travel compressed over this mesh axis."""
        return not self.axes or axis in self.axes

    def __str__(self) -> str:
        rank = f" of rank {self.rank}" if self.method == "powersgd" else ""
        over = f" over {', '.join(self.axes)}" if self.axes else ""
        after = f" after {self.after} exact steps" if self.after else ""
        return f"{self.method}{rank}{over}{after}"


def _unknown(given: Any) -> str:
    return (
        f"{argument('compression', given)} is unknown: pass {', '.join(map(quoted, METHODS))}, or "
        f"{quoted('powersgd:8')} for another rank, {quoted('int8@x')} for some mesh axes"
        + of_python(", or an autopar.Compression")
        + "."
    )
