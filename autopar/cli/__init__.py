"""The command line: one command per file; every error is one message, never a traceback."""
