"""Operators of our own, and how any operator is called by its name."""
