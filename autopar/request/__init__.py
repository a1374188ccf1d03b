"""What a person asks for besides a model: batches, options, constraints, views of the devices."""
