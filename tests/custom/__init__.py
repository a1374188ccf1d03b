"""Operators of a user's own, as a model's file would define them."""
