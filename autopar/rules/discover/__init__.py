"""Discovers rules by experiment: runs operators without a rule on shards of small random tensors."""

from autopar.rules.discover.backward import whole_gradients
from autopar.rules.discover.find import Discovery, discover, discovered, discovery
from autopar.rules.discover.settle import Finding

__all__ = ["Discovery", "Finding", "discover", "discovered", "discovery", "whole_gradients"]
