"""From a captured graph to stages: what the planner of `autopar/pipeline/planner` is told, and what it answers."""
