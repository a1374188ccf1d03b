"""Files that are plans by their fields, and nonsense by what these say: refused when they are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import fails
from tests.render.text import hand_made

Refused = Callable[[Any], str]
INF, NAN = float("inf"), float("nan")
Place = tuple[str | int, ...]


@pytest.fixture(params=["show", "simulate", "report"])
def refused(request: pytest.FixtureRequest, tmp_path: Path) -> Refused:
    """The message of each command that reads a plan alone."""

    def refuse(content: Any) -> str:
        path = tmp_path / "plan.json"
        path.write_text(json.dumps(content))
        more = ("-o", tmp_path / "page.html") if request.param == "report" else ()
        return fails(request.param, path, *more)

    return refuse


def changed(content: Any, place: Place, value: object) -> Any:
    """The content with another value at a place."""
    *way, last = place
    at = content
    for part in way:
        at = at[part]
    at[last] = value
    return content


def plan() -> Any:
    return json.loads(hand_made.plan().to_json())


def pipeline() -> Any:
    return json.loads(hand_made.pipeline().to_json())


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("objective_s",), NAN, "objective_s is nan"),
        (("objective_s",), INF, "objective_s is inf"),
        (("bound_s",), NAN, "the bound is nan s"),
        (("bound_nbytes",), INF, "within inf bytes"),
        (("estimate", "compute_s"), -1, "estimate.compute_s is -1.0"),
        (("estimate", "working_nbytes"), -1, "estimate.working_nbytes is -1"),
        (("estimate", "flows", 0, "calls"), -3, "estimate.flows.0.calls is -3"),
        (("estimate", "flows", 1, "seconds"), INF, "estimate.flows.1.seconds is inf"),
        (("estimate", "parts", "hideable"), [["x", NAN]], "estimate.parts.hideable.0.1 is nan"),
        (("asked", "states"), NAN, "asked.states is nan"),
        (("asked", "memory_limit"), -5, "asked.memory_limit is -5.0"),
        (("search", "candidates"), -1, "search.candidates is -1"),
        (("shares", 0, "flops"), NAN, "shares.0.flops is nan"),
        (("shares", 0, "stored"), 1.5, "shares.0 is more than the whole"),
        (("shares", 1, "axis"), "z", "shares has an axis 'z'; the mesh is (x=2, y=4)"),
        (("estimate", "flows", 0, "axis"), "z", "estimate.flows has an axis 'z'"),
        (
            ("estimate", "parts", "hideable"),
            [["z", 0.1]],
            "estimate.parts.hideable has an axis 'z'",
        ),
        (
            ("estimate", "operators"),
            [{"node": "never", "forward_s": 0.1, "backward_s": 0.1, "source": "modelled"}],
            "estimate.operators has 'never', which the plan does not",
        ),
        (("choices", 1, "node"), "scale", "operator scale is decided 2 times"),
        (("parameters", 1, "name"), "scale", "parameter scale is decided 2 times"),
        (("padded",), [{"what": "", "objective_s": NAN}], "padded.0.objective_s is nan"),
        (("views",), [{"mesh": "", "objective_s": -1}], "views.0.objective_s is -1.0"),
        (("buckets",), -1, "buckets is -1"),
    ],
)
def test_figures_of_plans(place: Place, value: object, said: str, refused: Refused) -> None:
    message = refused(changed(plan(), place, value))
    assert f"plan.json is not an autopar plan: {said}" in message or (
        "is not an autopar plan: the bound" in message and said in message
    )


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("workers",), [], "The workers' ranks [] are not the 8 of the mesh"),
        (("workers", 0, "mesh"), "x=2", "Worker 0 has 4 ranks on a mesh of 2"),
        (("cuts",), [], "The schedule has 2 stages on 2 workers; the plan has 1 on 2."),
        (("microbatches",), 0, "The schedule has 4 microbatches in 1 batches; the plan's batch"),
        (("microbatches",), -4, "the plan's batch has -4"),
        (("stages",), [], "The plan has no stages"),
        (("stages", 1, "worker"), 0, "There is no plan of stage 1 on worker 1"),
        (("workers", 0, "mesh"), "x=4, y=1", "stage 0 on worker 0 is of the mesh (x=1, y=4)"),
        (("actions",), "", "Cannot read ''; a schedule begins like"),
        (("actions",), "[red]", "Cannot read '[red]'"),
        (("actions",), "1f1b stages=9999999999 microbatches=4", "has 9999999999 stages"),
        (("prediction", "step_s"), NAN, "prediction.step_s is nan"),
        (("prediction", "bubbles", 1), 1.5, "prediction.bubbles.1 is 1.5, a share of the step"),
        (("prediction", "bubbles"), [], "prediction.bubbles are of 0 workers; the plan has 2"),
        (("prediction", "stages"), [], "prediction.stages are of (stage, worker) []"),
        (("prediction", "stages", 0, "forward_s"), -1, "prediction.stages.0.forward_s is -1.0"),
        (("prediction", "passed", 0, "target"), 9, "prediction.passed is from stage 0 to 9"),
        (("prediction", "joined", 0, "two"), 9, "prediction.joined is of workers 0 and 9"),
        (
            ("prediction", "copied"),
            [{"stage": 7, "worker": 0, "other": 1, "link": "intra_host", "seconds": 0.1}],
            "prediction.copied is of stage 7 on worker 0",
        ),
        (("stages", 0, "plan", "objective_s"), NAN, "stage 0 on worker 0 is not an autopar plan"),
    ],
)  # fmt: skip
def test_pipelines(place: Place, value: object, said: str, refused: Refused) -> None:
    message = refused(changed(pipeline(), place, value))
    assert "plan.json" in message and said in message and "Make a new one with" in message


def test_more_plans_than_places(refused: Refused) -> None:
    content = pipeline()
    content["stages"].append(content["stages"][0])
    assert "There are 3 stages' plans for 2 places" in refused(content)
    content["stages"][2] = content["stages"][0] | {"worker": 7}
    assert "a plan of stage 0 on worker 7, which the schedule does not hold" in refused(content)
