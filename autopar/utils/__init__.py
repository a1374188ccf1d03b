"""Files, progress, suggestions, processes: nothing of the field."""
