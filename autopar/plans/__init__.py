"""Plans as data: what was decided, what it should cost, what two of them decide differently."""
