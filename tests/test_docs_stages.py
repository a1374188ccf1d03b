"""The example of docs/stages.md, run as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

from autopar.stages import StagePlan


def test_the_example_by_hand() -> None:
    page = (Path(__file__).parent.parent / "docs" / "stages.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    names: dict[str, object] = {}
    exec(code, names)
    plan = names["plan"]
    assert isinstance(plan, StagePlan)
    assert plan.step_s == plan.bound_s == 12.0 and plan.gap == 0
    assert [(stage.start, stage.end, stage.way) for stage in plan.stages] == [(0, 2, "replicated")]
    assert "`plan.step_s` is 12, with one stage" in page
    assert "1 stages, 1f1b, 2 microbatches" in str(plan)
