"""Builds pipeline plans from captured graphs, using the planner in `autopar/pipeline/planner`."""
