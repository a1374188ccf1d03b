"""The cost model: seconds of operators, conversions, collectives and updates, and their overlap."""
