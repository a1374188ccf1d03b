"""Operators and methods of tensors that torch does not know, or gets wrong, on shards."""
