"""General utilities without domain knowledge: files, progress, suggestions, processes."""
