"""What a checkpoint consists of: its directory, its digests, and values that are data, never code."""
