"""What the pool's workers do with models whose sizes no mesh divides, by the public calls."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.distributed.tensor import DTensor

import autopar
from autopar.ir.pads import exchanging_axis
from autopar.runtime import checkpoint as runtime_checkpoint
from tests import models, parity
from tests.capture.compare import eager_loss
from tests.distributed.jobs import same_weights
from tests.uneven import UNEVEN
from tests.wide import Wide

STEPS = 3
RATE, DECAY, LARGEST = 1e-2, 0.3, 0.05
SAME = 1e-7
"""Adam divides by small numbers: in float64, after several steps."""
FORCED: dict[str, dict[str, str]] = {
    "vocabulary": {"used:*.wte.weight": "[S(0)]"},
    "heads": {
        "tensor:*.attn/scaled_dot_product_attention": "[S(1)]",
        "stored:*.c_attn.weight": "[S(1, of=3)]",
    },
    "batch": {"tensor:*.ln_f/layer_norm": "[S(0)]"},
}
"""What cannot be without padding, on one axis."""


def _case(name: str) -> models.Case:
    return models.double(UNEVEN[name]())


def _single(case: models.Case, steps: int, norm_type: float) -> tuple[torch.nn.Module, list[float]]:
    """Steps of one process, gradients clipped."""
    model, norms = copy.deepcopy(case[0]), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
    for _ in range(steps):
        eager_loss(model, case[1], case[2]).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), LARGEST, norm_type)))
        optimizer.step()
        optimizer.zero_grad()
    return model, norms


def _built(case: models.Case, mesh: tuple[int, ...], force: str | None) -> autopar.Parallel:
    constraints: Any = None if force is None else FORCED[force]
    made = autopar.parallelize(
        case[0], mesh, case[1], loss=case[2], constraints=constraints, hardware="cpu"
    )
    assert bool(made.plan.padding) == (force is not None)
    rows = [
        p for p in made.plan.parameters if exchanging_axis(p.stored, p.pads, made.plan.mesh) == 0
    ]
    assert bool(rows) == (force == "heads"), "rows of heads are exchanged between rest and step"
    return made


def _adamw(parallel: autopar.Parallel) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parallel.parameters(), lr=RATE, weight_decay=DECAY)


def _steps(
    parallel: autopar.Parallel, case: models.Case, optimizer: Any, count: int, norm_type: float
) -> list[float]:
    norms = []
    for _ in range(count):
        parallel(**case[1]).backward()
        norms.append(float(parallel.clip_grad_norm_(LARGEST, norm_type)))
        optimizer.step()
        optimizer.zero_grad()
    return norms


def training(name: str, mesh: tuple[int, ...], force: str, norm_type: float) -> list[str]:
    """AdamW with decay on clipped gradients, and no padding to be seen; what is padded."""
    case = _case(name)
    with Wide():
        want, norms = _single(case, STEPS, norm_type)
        parallel = _built(case, mesh, force)
    got = _steps(parallel, case, _adamw(parallel), STEPS, norm_type)
    assert all(abs(a - b) <= SAME * b for a, b in zip(got, norms, strict=True)), (got, norms)
    same_weights(parallel, want, SAME)
    for key, parameter in parallel.named_parameters():
        assert isinstance(parameter, DTensor)
        assert parameter.shape == dict(case[0].named_parameters())[key].shape
    return sorted({f"{p.pad.size} -> {p.pad.to}" for p in parallel.plan.padding})


def moved(folder: str, name: str, stages: tuple[tuple[tuple[int, ...], str | None], ...]) -> None:
    """A checkpoint goes from plan to plan, a step on each; then into the plain model."""
    case = _case(name)
    with Wide():
        want, _ = _single(case, len(stages), 2.0)
    for number, (mesh, force) in enumerate(stages):
        other = copy.deepcopy(case[0])
        if number:
            for parameter in other.parameters():
                torch.nn.init.zeros_(parameter)
        with Wide():
            parallel = _built((other, case[1], case[2]), mesh, force)
        optimizer = _adamw(parallel)
        if number:
            assert parallel.load(f"{folder}/{number - 1}", optimizer) == number
        _steps(parallel, case, optimizer, 1, 2.0)
        parallel.save(f"{folder}/{number}", optimizer, step=number + 1)
    same_weights(parallel, want, SAME)
    plain = copy.deepcopy(case[0])
    runtime_checkpoint.load(f"{folder}/{len(stages) - 1}", plain)
    for key, value in plain.state_dict().items():
        assert torch.allclose(value, want.state_dict()[key], atol=SAME), key


def plain_weights(folder: str, name: str, mesh: tuple[int, ...], force: str) -> None:
    """A plain state dict goes in and comes out, and so does a file of weights."""
    case = _case(name)
    with Wide():
        parallel = _built((copy.deepcopy(case[0]), case[1], case[2]), mesh, force)
    state = {k: torch.randn_like(v) for k, v in case[0].state_dict().items()}
    for key in state:
        torch.distributed.broadcast(state[key], src=0)
    if "lm_head.weight" in state:
        state["lm_head.weight"] = state["transformer.wte.weight"]
    parallel.load_state_dict(state)
    back = parallel.full_state_dict()
    assert all(torch.equal(back[key], value) for key, value in state.items())
    parallel.save_weights(f"{folder}/model.safetensors")
    for parameter in parallel.parameters():
        torch.nn.init.zeros_(parameter)
    parallel.load_weights(f"{folder}/model.safetensors")
    back = parallel.full_state_dict()
    assert all(torch.equal(back[key], value) for key, value in state.items())
    again = parallel(**case[1])
    single = copy.deepcopy(case[0])
    single.load_state_dict(state)
    with Wide():
        want = eager_loss(single, case[1], case[2])
    assert abs(float(again) - float(want)) <= SAME * abs(float(want))


def other_batches(mesh: tuple[int, ...], force: str) -> None:
    """Batches of other sizes, parts of batches and evaluation keep the parameters' padding."""
    case = _case("uneven_gpt2")
    with Wide():
        parallel = _built((copy.deepcopy(case[0]), case[1], case[2]), mesh, force)
        for size in (6, 4, 5):
            batch = {key: value[:size] for key, value in case[1].items()}
            _same_gradients(parallel, case, batch)
        parallel.train_step(**case[1], microbatches=2)
        _compare(parallel, case, case[1])
        with parallel.no_sync():
            parallel(**case[1]).backward()
        parallel(**case[1]).backward()
        _compare(parallel, case, case[1], times=2.0)
        parallel.eval()
        with torch.no_grad():
            got = parallel(input_ids=case[1]["input_ids"])
            want = case[0].eval()(input_ids=case[1]["input_ids"])
    assert got.logits.shape == want.logits.shape
    assert torch.allclose(got.logits.full_tensor(), want.logits, atol=1e-9)


def _same_gradients(parallel: autopar.Parallel, case: models.Case, batch: dict[str, Any]) -> None:
    parallel(**batch).backward()
    _compare(parallel, case, batch)


def _compare(
    parallel: autopar.Parallel, case: models.Case, batch: dict[str, Any], times: float = 1.0
) -> None:
    """Gradients are those of one process; then they are dropped."""
    single = copy.deepcopy(case[0])
    eager_loss(single, batch, case[2]).backward()
    want = {key: p.grad for key, p in single.named_parameters()}
    scale = max(float(g.abs().max()) for g in want.values() if g is not None)
    for key, parameter in parallel.named_parameters():
        assert isinstance(parameter.grad, DTensor), key
        difference = (parameter.grad.full_tensor() - times * want[key]).abs().max()  # type: ignore[operator]
        assert float(difference) <= 1e-9 * scale, key
    parallel.zero_grad()


def adding_up(work: parity.Work) -> None:
    """Gradients that stay between backwards are added to, wherever they lie."""
    parallel = parity.parallel_of(work)
    batch = parity.reference(work.name).batches[0]
    parallel(**batch).backward()
    once = _whole_gradients(parallel)
    for times in (2, 3):
        parallel(**batch).backward()
        for key, gradient in _whole_gradients(parallel).items():
            parity.close(gradient, times * once[key], f"{key}, {times} times")
    torch.optim.SGD(parallel.parameters()).zero_grad(set_to_none=False)
    parallel(**batch).backward()
    for key, gradient in _whole_gradients(parallel).items():
        parity.close(gradient, once[key], f"{key}, from zero")


def _whole_gradients(parallel: autopar.Parallel) -> dict[str, torch.Tensor]:
    named = parallel.named_parameters()
    return {key: p.grad.full_tensor().clone() for key, p in named if isinstance(p.grad, DTensor)}
