"""From a captured graph to a plan: posed as a problem, within a limit, padded where that pays."""
