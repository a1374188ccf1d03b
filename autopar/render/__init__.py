"""Every table, page and picture of a plan, for a terminal or a browser."""
