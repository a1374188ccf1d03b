"""autopar's own operators, and the look-up of operators by name."""
