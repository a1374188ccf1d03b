"""From a captured graph to stages: what the planner of `autopar/stages` is told, and what it answers."""
