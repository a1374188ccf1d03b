"""The runtime of pipelines: interprets a schedule's action list on this rank."""
