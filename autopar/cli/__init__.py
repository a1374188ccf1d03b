"""The command line, with one command per file.  Expected errors are one message without traceback."""
