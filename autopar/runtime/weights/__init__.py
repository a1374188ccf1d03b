"""Values for a model's tensors, a shard at a time: from files, state dicts and initialisers."""
