"""A headless Chromium, spoken to over its DevTools pipe: a page drawn at a width, in a colour scheme.

A window of its own is never narrower than 500 pixels; a page's viewport may be as narrow as a phone's.
"""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Scheme = Literal["light", "dark"]
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--remote-debugging-pipe",
)  # fmt: skip
# The browser reads its pipe 3 and writes its pipe 4.
LAUNCH = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
PATIENCE_S = 60.0
HIGH = 900
OPENED = "for (const each of document.querySelectorAll('details')) each.open = true"
MEASURED = """({
    drawn: Number(document.body.dataset.drawn || -1),
    charts: document.querySelectorAll('.chart > .js-plotly-plot, .chart.js-plotly-plot').length,
    wide: document.documentElement.scrollWidth, inner: window.innerWidth,
    high: document.documentElement.scrollHeight,
    ground: getComputedStyle(document.body).backgroundColor,
    scrolled: [...document.querySelectorAll('.scroll')]
        .filter((each) => each.scrollWidth > each.clientWidth + 1)
        .map((each) => each.closest('section').id),
    touched: [...document.querySelectorAll('.chart')].filter((each) =>
        each.querySelector('g.legend').getBoundingClientRect().bottom
            > each.querySelector('.nsewdrag').getBoundingClientRect().top).map((each) => each.id),
})"""


def program() -> str | None:
    """Where a browser is, if there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@dataclass(frozen=True)
class Look:
    """A page as it was drawn, all that folds away opened: sizes in pixels, and what went wrong.

    `scrolled` are the sections with tables that are wider than the page, `touched` the charts
    whose legend reaches into them.
    """

    drawn: int
    charts: int
    wide: int
    inner: int
    high: int
    ground: str
    scrolled: list[str]
    touched: list[str]
    faults: tuple[str, ...]


class Browser:
    """One process; every page has a tab of its own."""

    def __init__(self, path: str, folder: Path) -> None:
        (theirs_in, self._to), (self._from, theirs_out) = os.pipe(), os.pipe()
        # Not 3 or 4, which the browser wants to be these.
        ends = tuple(fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs_in, theirs_out))
        command = [sys.executable, "-c", LAUNCH, *map(str, ends), path, *FLAGS]
        self._log = (folder / "browser.log").open("wb")
        self._process = subprocess.Popen(
            [*command, f"--user-data-dir={folder / 'profile'}", "about:blank"],
            pass_fds=ends, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
        )  # fmt: skip
        for end in (theirs_in, theirs_out, *ends):
            os.close(end)
        self._numbers = itertools.count(1)
        self._rest = b""

    def close(self) -> None:
        """End it, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        self._log.close()
        for end in (self._to, self._from):
            os.close(end)

    def look(self, page: Path, width: int, scheme: Scheme, picture: Path) -> Look:
        """Draw a page, keep a picture of all of it, and say how it looks."""
        tab = self._asked("Target.createTarget", url="about:blank")["targetId"]
        session = self._asked("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        faults: list[str] = []

        def asked(method: str, **how: Any) -> dict[str, Any]:
            return self._asked(method, session, lambda event: faults.extend(_faults(event)), **how)

        for part in ("Page", "Runtime", "Log"):
            asked(f"{part}.enable")
        sizes = {"width": width, "height": HIGH, "deviceScaleFactor": 1, "mobile": False}
        asked("Emulation.setDeviceMetricsOverride", **sizes)
        asked("Emulation.setScrollbarsHidden", hidden=True)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        asked("Emulation.setEmulatedMedia", features=[feature])
        asked("Page.navigate", url=page.as_uri())

        def value(script: str) -> Any:
            return asked("Runtime.evaluate", expression=script, returnByValue=True)["result"].get(
                "value"
            )

        until = time.monotonic() + PATIENCE_S
        while value("document.readyState") != "complete" and time.monotonic() < until:
            time.sleep(0.1)
        value(OPENED)
        found = value(MEASURED)
        clip = {"x": 0, "y": 0, "width": width, "height": found["high"], "scale": 1}
        taken = asked("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        picture.write_bytes(base64.b64decode(taken["data"]))
        self._asked("Target.closeTarget", targetId=tab)
        return Look(**found, faults=tuple(faults))

    def _asked(
        self,
        method: str,
        session: str | None = None,
        watch: Callable[[dict[str, Any]], None] = lambda event: None,
        **how: Any,
    ) -> dict[str, Any]:
        """The answer; events that come before it are watched."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": how}
        message |= {"sessionId": session} if session else {}
        left = json.dumps(message).encode() + b"\0"
        while left:
            left = left[os.write(self._to, left) :]
        while (answer := self._read(method)).get("id") != number:
            watch(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result = answer["result"]
        assert isinstance(result, dict)
        return result

    def _read(self, method: str) -> dict[str, Any]:
        """The next message."""
        until = time.monotonic() + PATIENCE_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0.0, until - time.monotonic()))
            part = os.read(self._from, 1 << 20) if ready else b""
            assert part, f"the browser does not answer {method}; see {self._log.name}"
            self._rest += part
        first, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(first)
        assert isinstance(message, dict)
        return message


def _faults(event: dict[str, Any]) -> list[str]:
    """What went wrong: exceptions, errors on the console, what the page's policy refused."""
    method, params = event.get("method"), event.get("params", {})
    if method == "Runtime.exceptionThrown":
        return [json.dumps(params["exceptionDetails"])]
    if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
        return [json.dumps(params["args"])]
    if method == "Log.entryAdded" and params["entry"]["level"] == "error":
        return [params["entry"]["text"]]
    return []
