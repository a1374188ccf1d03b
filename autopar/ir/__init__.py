"""The values that everything speaks: graphs, meshes, types and their conversions, padding, blocks."""
