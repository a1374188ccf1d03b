"""What a person may ask of a pipeline, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autopar.compile.automatic import samples_of
from autopar.errors import InputError, ScheduleError
from autopar.ir.mesh import Mesh
from autopar.pipeline.build.pipeline_spec import PipelineSpec, worker_meshes
from autopar.pipeline.schedules import SCHEDULES, build, check
from autopar.request.batches import Batches
from autopar.request.options import Options
from autopar.request.pipeline import Pipeline
from autopar.request.planning import Planning
from autopar.runtime.programs import in_parts


def spec(devices: int, stages: object, *asked, samples=None, **more) -> PipelineSpec:
    return PipelineSpec.of(Mesh.of(devices), Pipeline(stages, *asked, **more), samples)


@pytest.mark.parametrize(
    ("mesh", "stages", "shapes", "ranks"),
    [
        ((4,), 2, [(2,), (2,)], [(0, 1), (2, 3)]),
        ((2, 2), 2, [(1, 2), (1, 2)], [(0, 1), (2, 3)]),
        ((2, 4), 4, [(1, 2)] * 4, [(0, 1), (2, 3), (4, 5), (6, 7)]),
        ((2, 3), 3, [(2,)] * 3, [(0, 1), (2, 3), (4, 5)]),
        ((4,), [1, 3], [(1,), (3,)], [(0,), (1, 2, 3)]),
        ((2, 2), [(1, 2), 1, (1,)], [(1, 2), (1,), (1,)], [(0, 1), (2,), (3,)]),
    ],
)
def test_devices_are_divided(mesh, stages, shapes, ranks) -> None:
    found = worker_meshes(Mesh.of(*mesh), stages)
    assert [worker.mesh.sizes for worker in found] == shapes
    assert [worker.ranks for worker in found] == ranks


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        (3, "4 devices cannot be divided into 3 equal stages"),
        (0, "cannot be divided into 0"),
        ([1, 2], r"pipeline=\[1, 2\] takes 3 devices; the mesh \(x=4\) has 4"),
    ],
)
def test_divisions_that_do_not_fit(stages, message) -> None:
    with pytest.raises(InputError, match=message):
        worker_meshes(Mesh.of(4), stages)


def test_schedules_that_are_refused() -> None:
    with pytest.raises(InputError, match="No schedule is called '2f2b'; there are naive, gpipe"):
        spec(4, 2, "2f2b", None)
    with pytest.raises(
        InputError, match=r"in flight.*Pass pipeline=Pipeline\(asynchronous=True\) if that is what"
    ):
        spec(4, 2, "pipedream", None)
    with pytest.raises(
        InputError, match=r"permits .*: pipedream, pipedream-vertical, pipedream-2bw"
    ):
        spec(4, 2, "gpipe", None, asynchronous=True)
    with pytest.raises(ScheduleError, match="even number of workers"):
        wanted = spec(3, 3, "chimera", 4)
        build(wanted.schedule, len(wanted.workers), wanted.microbatches)


def test_defaults() -> None:
    wanted = spec(4, 2, None, None)
    assert (wanted.schedule, wanted.stages, wanted.microbatches) == ("1f1b", 2, 4)
    assert spec(4, 2, "zb-v", None).stages == 4


def test_batches_of_other_sizes_are_cut_into_parts_that_are_no_larger() -> None:
    wanted = spec(2, 2, "zb-v", 4)
    parts = {samples: wanted.of_batch(samples, 2).microbatches for samples in (1, 5, 6, 7, 8, 16)}
    assert parts == {1: 1, 5: 5, 6: 3, 7: 7, 8: 4, 16: 4}
    both_ways = spec(2, 2, "dualpipe-v", 4)
    assert both_ways.of_batch(6, 2).microbatches == 6, "it is not made of three"
    stream = spec(2, 2, "pipedream-2bw", 4, asynchronous=True)
    assert stream.of_batch(6, 2) == stream, "how often weights are updated stays"


def test_streams_that_are_asked_for() -> None:
    """A batch is one microbatch of pipedream, and as many of 2bw as there are workers, or more."""
    for name, microbatches in (("pipedream", 1), ("pipedream-vertical", 1), ("pipedream-2bw", 3)):
        wanted = spec(3, 3, name, None, asynchronous=True)
        assert wanted.microbatches == microbatches
        schedule = wanted.build()
        assert schedule.batches * microbatches == schedule.microbatches >= 6
    with pytest.raises(ScheduleError, match="each is a batch of its own, and cannot be cut into 2"):
        spec(3, 3, "pipedream", 2, asynchronous=True).build()
    with pytest.raises(ScheduleError, match="at least the number of workers"):
        spec(3, 3, "pipedream-2bw", 2, asynchronous=True).build()
    with pytest.raises(InputError, match=r"one stage on each worker: 3, not 2\. Pass 2 cuts"):
        spec(3, 3, "pipedream", None, ("a",), asynchronous=True).build()


def test_what_only_pipelines_have_and_what_they_have_not() -> None:
    with pytest.raises(
        InputError, match=r"Pipeline\(schedule='gpipe'\) is for pipelines: pass pipe"
    ):
        Pipeline(1, "gpipe")
    with pytest.raises(InputError, match=r"Pipeline\(microbatches=8\) is for pipelines"):
        Pipeline(1, microbatches=8)
    with pytest.raises(InputError, match=r"Pipeline\(asynchronous=True\) is for pipelines"):
        Pipeline(1, asynchronous=True)
    for given, said in (
        ({"batches": Batches(local=True)}, r"Batches\(local=True\)"),
        ({"batches": Batches(replan=False)}, r"Batches\(replan=False\)"),
        ({"planning": Planning(source=Path("a.py"))}, r"Planning\(source="),
    ):
        Options.of(**given)
        with pytest.raises(InputError, match=rf"{said}.* is not available for pipelines yet"):
            Options.of(pipeline=2, **given)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"stages": "1+1"}, "pipeline='1\\+1': pass a number"),
        ({"stages": 1.5}, "pipeline=1.5: pass a number"),
        ({"stages": None}, "pipeline=None: pass a number"),
        ({"stages": True}, "pipeline=True: pass a number"),
        ({"stages": ["a", 1]}, "pass a number"),
        ({"microbatches": "4"}, r"Pipeline\(microbatches='4'\): pass a whole number"),
        ({"microbatches": 0}, r"Pipeline\(microbatches=0\): pass a whole number"),
        ({"microbatches": True}, r"Pipeline\(microbatches=True\): pass a whole number"),
        ({"cuts": "linear_1"}, r"as \['linear_1'\]"),
    ],
)
def test_kinds_that_are_wrong(asked, message) -> None:
    with pytest.raises(InputError, match=message):
        Pipeline(**{"stages": 2} | asked)


def test_microbatches_that_nobody_asked_for_divide_the_batch() -> None:
    for samples, parts in ((8, 4), (3, 3), (1, 1), (12, 6), (7, 1)):
        assert spec(3, 3, None, None, samples=samples).microbatches == parts


def test_cuts_make_one_stage_more() -> None:
    with pytest.raises(
        InputError, match="2 cuts make 3 stages; 1f1b on 2 workers has 2: pass 1 cuts"
    ):
        spec(2, 2, "1f1b", None, ("a", "b"))


@pytest.mark.parametrize(
    ("schedule", "samples", "microbatches"),
    [
        ("1f1b", 8, 4), ("1f1b", 9, 3), ("1f1b", 7, 1), ("pipedream-2bw", 16, 4),
        ("dualpipe-v", 8, 8), ("eager-1f1b", 16, 4),
    ],
)  # fmt: skip
def test_defaults_are_what_the_batch_and_the_schedule_can_have(
    schedule: str, samples: int, microbatches: int
) -> None:
    """Three workers, where the usual number of parts does not divide the batch."""
    asynchronous = SCHEDULES[schedule].asynchronous
    wanted = spec(4, [1, 1, 2], schedule, None, (), asynchronous, samples=samples)
    assert wanted.microbatches == microbatches
    check(wanted.build())


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(InputError, match="The example batch is empty: its first dim is 0"):
        samples_of({"x": torch.empty(0, 4)})
    with pytest.raises(InputError, match="it cannot be divided"):
        in_parts({"x": torch.empty(0, 4)}, 2)
