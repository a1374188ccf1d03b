"""Basic data types of all packages: graphs, meshes, placements and conversions, padding, blocks."""
