"""The pipeline runtime: executes a schedule's action list on this rank."""
