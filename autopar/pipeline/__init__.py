"""Pipeline parallelism: stage planners on plain data, schedules, their simulation, and plan building."""
