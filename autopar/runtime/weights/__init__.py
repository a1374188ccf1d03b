"""Loads and saves a model's weights shard by shard: files, state dicts and initialisers."""
