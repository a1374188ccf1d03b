"""Compiles a model and its batches into plans and programs, with or without pipeline stages."""
