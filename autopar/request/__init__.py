"""The user's request besides the model: batches, options, constraints, candidate meshes."""
