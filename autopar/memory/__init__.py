"""Bytes: what is alive when, in forward and backward, and what runs again."""
