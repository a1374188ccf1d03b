"""Plans a captured graph: builds the sharding problem, solves it within a memory limit, pads sizes."""
