"""Sharding rules: one factor rule per operator, from which every node's candidates are derived."""

from autopar.rules import families
from autopar.rules.batch import batch_dims
from autopar.rules.call import LocalCall, local_call, on_shards
from autopar.rules.candidates import batch_forms, candidates
from autopar.rules.declare import registered, rule_of
from autopar.rules.discover import discovered
from autopar.rules.known import known_rules
from autopar.rules.local import localize
from autopar.rules.positions import positions
from autopar.rules.report import Coverage, coverage
from autopar.rules.text import parse_rule
from autopar.rules.user import rule, user_rules
from autopar.rules.variants import variant_memory, variant_traffic
from autopar.rules.work import backward_flops, flops

__all__ = [
    "Coverage", "LocalCall", "backward_flops", "batch_dims", "batch_forms", "candidates",
    "coverage", "discovered", "families", "flops", "known_rules", "local_call", "localize",
    "on_shards", "parse_rule", "positions", "registered", "rule", "rule_of", "user_rules",
    "variant_memory", "variant_traffic",
]  # fmt: skip
