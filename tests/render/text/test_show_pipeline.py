"""A pipeline's schedule on a page: a row per worker, time to the right."""

from __future__ import annotations

from collections.abc import Callable

from autopar.ir.mesh import Mesh
from autopar.pipeline.build.pipeline_spec import worker_meshes
from autopar.pipeline.schedules import build, lower
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.render.text.pipeline import schedule_page


def plan(name: str, mesh: Mesh, microbatches: int) -> PipelinePlan:
    """Without stages' plans, of which the page says nothing."""
    schedule = lower(build(name, 2, microbatches))
    workers = worker_meshes(mesh, [(mesh.world_size // 4,), (3 * mesh.world_size // 4,)])
    return PipelinePlan("GPT", "", mesh, (), microbatches, str(schedule), workers, ())


def test_pages(golden: Callable[[str, str], None]) -> None:
    pages = (plan("1f1b", Mesh.of(8), 3), plan("zb-v", Mesh.of(4), 4))
    golden("schedule_pages.txt", "\n".join(map(schedule_page, pages)))


def test_a_page_follows_the_lists() -> None:
    one, other = (schedule_page(plan(name, Mesh.of(4), 4)) for name in ("1f1b", "gpipe"))
    assert "worker 0 F0 F1 " in one and "worker 0 F0 F1 F2 F3 " in other
    assert one.count("| 0SEND_F") == other.count("| 0SEND_F") == 4
