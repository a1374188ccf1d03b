"""Pads sizes that mesh axes do not divide, by rewriting the graph."""

from autopar.sharding.padding.propose import Proposal, proposals
from autopar.sharding.padding.rewrite import padded, padding_of

__all__ = ["Proposal", "padded", "padding_of", "proposals"]
