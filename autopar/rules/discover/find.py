"""Entry point of discovery: looks a rule up, or experiments once per operator and call pattern."""

from __future__ import annotations

import time
from dataclasses import dataclass

from autopar.errors import RuleError
from autopar.ir.graph import Arg, Node, Ref, Tensor
from autopar.ops.operators import callable_of
from autopar.rules import _torch
from autopar.rules.declare import Call, Declared, otherwise
from autopar.rules.discover import store
from autopar.rules.discover.laboratory import DRAWS, Bench, Declined, bench, refuse, sheltered
from autopar.rules.discover.settle import Finding, settle
from autopar.rules.discover.sizes import Shapes, affordable, families

Signature = tuple[tuple[str, str], ...]
Families = tuple[tuple[Shapes, ...], ...]


@dataclass(frozen=True)
class Discovery:
    """One finding with its operator, call pattern, origin and duration."""

    op: str
    pattern: str
    finding: Finding
    seconds: float
    origin: str
    """``experiment`` or ``disk``."""


_KNOWN: dict[Signature, Discovery] = {}


def discovered() -> tuple[Discovery, ...]:
    """Return all findings of this process, new or from disk, in order."""
    return tuple(_KNOWN.values())


@otherwise("discovered")
def discover(call: Call) -> Declared | None:
    """Return the rule of a call by experiment; None if there is none."""
    if store.mode() == "off" or not call.operands:
        return None
    return discovery(call.node, call.operands).finding.on(call.node, call.operands)


def discovery(node: Node, operands: tuple[Tensor, ...]) -> Discovery:
    """Return the finding for a call, from an experiment on first use.

    An operator that accepts no small shapes is tried on the call's own shapes, if not too large.
    """
    shapes = tuple(tensor.shape for tensor in operands)
    found = _known(node, operands, tuple(families(shapes, node)))
    if found.finding.ran or not affordable(shapes):
        return found
    return _known(node, operands, ((shapes,),))


def _known(node: Node, operands: tuple[Tensor, ...], tried: Families) -> Discovery:
    signature = signature_of(node, operands, tried)
    if signature not in _KNOWN:
        _KNOWN[signature] = _looked_up(signature) or _found(signature, node, operands, tried)
    return _KNOWN[signature]


def forget_all() -> None:
    """Clear all findings of this process."""
    _KNOWN.clear()


def _looked_up(signature: Signature) -> Discovery | None:
    key = dict(signature)
    finding = store.read(key) if _on_disk(key) else None
    return None if finding is None else Discovery(key["op"], key["pattern"], finding, 0.0, "disk")


def _found(
    signature: Signature, node: Node, operands: tuple[Tensor, ...], tried: Families
) -> Discovery:
    started = time.perf_counter()
    key = dict(signature)
    finding = experiment(node, operands, tried)
    if _on_disk(key):
        store.keep(key, finding)
    took = time.perf_counter() - started
    return Discovery(key["op"], key["pattern"], finding, took, "experiment")


def _on_disk(key: dict[str, str]) -> bool:
    """Return whether findings are stored on disk; not if changes of the operator cannot be detected."""
    return store.mode() == "on" and key["source"] != "unknown"


def experiment(node: Node, operands: tuple[Tensor, ...], tried: Families) -> Finding:
    """Find the possible splits on the first family of shapes that the operator accepts."""
    try:
        refuse(node, operands)
    except Declined as reason:
        return Finding(reason=str(reason))
    try:
        with sheltered():
            return settle(benches(node, operands, tried))
    except (Declined, RuleError) as reason:
        return Finding(reason=str(reason), ran=False)


def benches(node: Node, operands: tuple[Tensor, ...], tried: Families) -> tuple[Bench, ...]:
    """Return benches on the first family of shapes that is accepted; raise `Declined` if none is."""
    reason = "its operands are too large to try: an argument fixes their sizes"
    for family in tried:
        made: list[Bench] = []
        for small in family:
            try:
                made.append(bench(node, operands, small, DRAWS[-1:] if made else DRAWS))
            except Declined as declined:
                reason = str(declined)
                break
        if made:
            return tuple(made)
    raise Declined(reason)


def signature_of(node: Node, operands: tuple[Tensor, ...], tried: Families) -> Signature:
    """Return a key that is equal for calls with the same finding: they share the small shapes."""
    order = {name: f"<{place}>" for place, name in enumerate(dict.fromkeys(node.operands))}
    arguments = _written((node.args, tuple(value for _, value in node.kwargs)), order)
    tensors = ", ".join(
        f"{order[t.name]} {t.dtype}{'' if t.differentiable else ' no grad'}" for t in operands
    )
    made = ", ".join(
        f"{t.dtype}{[int(n == 1) for n in t.shape]}{'' if t.differentiable else ' no grad'}"
        for t in node.outputs
    )
    function = callable_of(node.op)
    source = _torch.source_digest(node.op)
    pattern = f"{arguments} with {tensors} of {list(tried)} -> {made}"
    return (
        ("op", node.op),
        ("schema", _torch.schema(function)),
        ("pattern", pattern),
        ("torch", _torch.VERSION),
        ("source", "unknown" if source is None else source),
    )


def _written(arg: Arg, order: dict[str, str]) -> str:
    if isinstance(arg, Ref):
        return order[arg.name]
    if isinstance(arg, tuple):
        return f"({', '.join(_written(item, order) for item in arg)})"
    return repr(arg)
