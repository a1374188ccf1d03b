"""Builds pipeline plans from captured graphs, with the planner in `autopar/pipeline/planner`."""
