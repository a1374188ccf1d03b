"""The parts of a checkpoint: its directory, its digests, and values that are read as data, not code."""
