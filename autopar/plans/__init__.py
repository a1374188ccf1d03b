"""Plans as data: decisions, predicted costs, and differences between plans."""
