"""Awkward sizes: dims that no mesh axis divides, padded in a rewrite of the graph where that pays."""

from autopar.sharding.padding.propose import Proposal, proposals
from autopar.sharding.padding.rewrite import padded, padding_of

__all__ = ["Proposal", "padded", "padding_of", "proposals"]
