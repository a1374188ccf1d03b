"""Stages: planners on plain data, schedules, their simulation, and what builds a pipeline plan."""
