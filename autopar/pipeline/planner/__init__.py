"""Chooses cuts, submeshes, ways to run stages and a schedule, from plain cost data."""

from autopar.pipeline.planner.families import (
    EAGER,
    FAMILIES,
    GPIPE,
    ONE_F_ONE_B,
    ZB_H1,
    ZB_H2,
    Family,
)
from autopar.pipeline.planner.interleaved import InterleavedPlan, interleavings
from autopar.pipeline.planner.planning import Planner, is_hopeless, plan_stages
from autopar.pipeline.planner.read_dnn_partitioning import read_dnn_partitioning
from autopar.pipeline.planner.read_piper import read_piper
from autopar.pipeline.planner.stage_plan import PlannedStage, StagePlan
from autopar.pipeline.planner.table import StageOption, StageProblem, StageTable
from autopar.pipeline.planner.throughput import LoadedStage, ThroughputPlan, least_load
from autopar.pipeline.planner.v_schedule import VSchedulePlan, vees
from autopar.pipeline.planner.workload import Layer, Option, Pool, Tensor, Workload

__all__ = [
    "EAGER",
    "FAMILIES",
    "GPIPE",
    "ONE_F_ONE_B",
    "ZB_H1",
    "ZB_H2",
    "Family",
    "InterleavedPlan",
    "Layer",
    "LoadedStage",
    "Option",
    "PlannedStage",
    "Planner",
    "Pool",
    "StageOption",
    "StagePlan",
    "StageProblem",
    "StageTable",
    "Tensor",
    "ThroughputPlan",
    "VSchedulePlan",
    "Workload",
    "interleavings",
    "is_hopeless",
    "least_load",
    "plan_stages",
    "read_dnn_partitioning",
    "read_piper",
    "vees",
]
