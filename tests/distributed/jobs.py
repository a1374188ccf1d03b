"""What the pool's workers do in tests of the public calls."""

from __future__ import annotations

import contextlib
import copy
import os
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor

import autopar
from autopar.runtime.counting import CountTraffic
from tests import models
from tests.capture.compare import eager_loss
from tests.parity import check_traffic

Case = models.Case
os.environ.setdefault("AUTOPAR_CACHE", tempfile.mkdtemp(prefix="autopar_cache_"))


def reference_steps(
    case: Case, steps: int, make: Callable[..., Any], **options: Any
) -> tuple[torch.nn.Module, list[float]]:
    """Some steps of the single process."""
    model, inputs, loss = copy.deepcopy(case[0]), case[1], case[2]
    optimizer = make(model.parameters(), **options)
    losses = []
    for _ in range(steps):
        value = eager_loss(model, inputs, loss)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(value.detach()))
    return model, losses


def same_weights(parallel: autopar.Parallel, model: torch.nn.Module, tolerance: float) -> None:
    """All weights and buffers equal, relative to the largest."""
    want = model.state_dict()
    got = parallel.full_state_dict()
    assert got.keys() == want.keys(), got.keys() ^ want.keys()
    for key, value in want.items():
        scale = max(float(value.detach().double().abs().max()), 1.0)
        difference = float((got[key].double() - value.double()).detach().abs().max())
        assert difference <= tolerance * scale, f"{key}: {difference} of {scale}"


def losses_of(parallel: autopar.Parallel, case: Case, steps: int, optimizer: Any) -> list[float]:
    """The plain loop."""
    losses = []
    for _ in range(steps):
        loss = parallel(**case[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def adamw(name: str, mesh: tuple[int, ...], preset: str | None) -> None:
    """Several AdamW steps in float32."""
    case = models.CASES[name]()
    model, want = reference_steps(case, 3, torch.optim.AdamW, lr=1e-3)
    parallel = autopar.parallelize(case[0], mesh, case[1], loss=case[2], preset=preset)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-3)
    got = losses_of(parallel, case, 3, optimizer)
    assert all(abs(a - b) < 1e-4 for a, b in zip(got, want, strict=True)), (got, want)
    same_weights(parallel, model, 1e-4)


def accumulation(mesh: tuple[int, ...], preset: str) -> None:
    """no_sync adds up on each rank; one synchronisation; abandoned sums leave no trace."""
    case = models.double(models.mlp())
    single = copy.deepcopy(case[0])
    for _ in range(3):
        eager_loss(single, case[1], case[2]).backward()
    want = {k: p.grad for k, p in single.named_parameters()}
    parallel = autopar.parallelize(case[0], mesh, case[1], loss=case[2], preset=preset)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    with parallel.no_sync():
        parallel(**case[1]).backward()
    optimizer.zero_grad()
    with parallel.no_sync():
        parallel(**case[1]).backward()
        parallel(**case[1]).backward()
    parallel(**case[1]).backward()
    _same_gradients(parallel, want)
    parallel(**case[1]).backward()
    _same_gradients(parallel, {k: g * 4 / 3 for k, g in want.items() if g is not None})
    parallel.zero_grad()
    assert all(p.grad is None for p in parallel.parameters())


def _same_gradients(parallel: autopar.Parallel, want: dict[str, Any]) -> None:
    scale = max(float(g.abs().max()) for g in want.values())
    for key, parameter in parallel.named_parameters():
        assert isinstance(parameter.grad, DTensor), key
        difference = float((parameter.grad.full_tensor() - want[key]).abs().max())
        assert difference <= 1e-9 * scale, f"{key}: {difference} of {scale}"


def clipping(mesh: tuple[int, ...], preset: str, norm_type: float) -> None:
    """The norm and the clipped gradients are those of the single process."""
    case = models.double(models.mlp())
    single = copy.deepcopy(case[0])
    eager_loss(single, case[1], case[2]).backward()
    want = torch.nn.utils.clip_grad_norm_(single.parameters(), 0.1, norm_type)
    parallel = autopar.parallelize(case[0], mesh, case[1], loss=case[2], preset=preset)
    parallel(**case[1]).backward()
    got = parallel.clip_grad_norm_(0.1, norm_type)
    assert abs(float(got) - float(want)) <= 1e-9 * float(want)
    _same_gradients(parallel, {k: p.grad for k, p in single.named_parameters()})


def evaluation(mesh: tuple[int, ...], preset: str) -> None:
    """eval() without labels gives the model's own output object with whole logits behind it."""
    case = models.gpt2()
    parallel = autopar.parallelize(
        case[0], mesh, case[1], preset=preset, batches=autopar.Batches(outputs=["logits"])
    )
    single = copy.deepcopy(case[0]).eval()
    parallel.eval()
    with torch.no_grad():
        got = parallel(input_ids=case[1]["input_ids"])
        want = single(input_ids=case[1]["input_ids"])
    assert type(got) is type(want)
    assert isinstance(got.logits, DTensor)
    assert torch.allclose(got.logits.full_tensor(), want.logits, atol=1e-5)
    parallel.train()
    out = parallel(**case[1])
    assert isinstance(out.logits, DTensor)
    out.loss.backward()
    assert all(p.grad is not None for p in parallel.parameters())


def other_shapes(mesh: tuple[int, ...]) -> None:
    """A short last batch is planned when it comes, and is right."""
    case = models.gpt2()
    parallel = autopar.parallelize(case[0], mesh, case[1])
    short = {key: value[:3, :10] for key, value in case[1].items()}
    single = copy.deepcopy(case[0])
    want = single(**short).loss
    want.backward()
    loss = parallel(**short)
    loss.backward()
    assert abs(float(loss.detach()) - float(want.detach())) < 1e-5
    gradients = {k: p.grad for k, p in single.named_parameters()}
    for key, parameter in parallel.named_parameters():
        assert torch.allclose(parameter.grad.full_tensor(), gradients[key], atol=1e-5), key


def refused_shapes(mesh: tuple[int, ...]) -> str:
    """replan=False says what to do."""
    case = models.gpt2()
    parallel = autopar.parallelize(case[0], mesh, case[1], batches=autopar.Batches(replan=False))
    try:
        parallel(**{key: value[:3] for key, value in case[1].items()})
    except autopar.AutoparError as error:
        return str(error)
    raise AssertionError("a batch of another shape was accepted")


def local_input(mesh: tuple[int, ...], preset: str) -> int:
    """Each rank passes its own part."""
    case = models.double(models.mlp())
    model, want = reference_steps(case, 2, torch.optim.SGD, lr=0.1)
    parallel = autopar.parallelize(
        case[0], mesh, case[1], loss=case[2], preset=preset, batches=autopar.Batches(local=True)
    )
    size = models.BATCH // parallel.data_replicas
    start = parallel.data_rank * size
    part = {key: value[start : start + size] for key, value in case[1].items()}
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    got = losses_of(parallel, (case[0], part, case[2]), 2, optimizer)
    assert all(abs(a - b) < 1e-9 for a, b in zip(got, want, strict=True)), (got, want)
    same_weights(parallel, model, 1e-9)
    return parallel.data_replicas


def edited_source(mesh: tuple[int, ...], folder: str) -> None:
    """An edited file runs: the loss is doubled by hand."""
    case = models.mlp()
    parallel = autopar.parallelize(case[0], mesh, case[1], loss=case[2], preset="ddp")
    first = float(parallel(**case[1]).detach())
    text = parallel.source
    before, _, result = text.rpartition("        return ")
    path = f"{folder}/edited_{os.environ['RANK']}.py"
    with open(path, "w") as file:
        file.write(f"{before}        return 2 * {result.strip().rstrip(',')},\n")
    again = autopar.parallelize(
        case[0], mesh, case[1], loss=case[2], preset="ddp", planning=autopar.Planning(source=path)
    )
    assert abs(float(again(**case[1]).detach()) - 2 * first) < 1e-5
    assert again.source_path == path


def checkpoint(folder: str, saves: bool, mesh: tuple[int, ...], preset: str) -> None:
    """Two steps, save; on another mesh load, one more step: equal to three steps alone."""
    case = models.gpt2()
    model, _ = reference_steps(case, 3, torch.optim.AdamW, lr=1e-3)
    if not saves:
        for parameter in case[0].parameters():
            torch.nn.init.zeros_(parameter)
    parallel = autopar.parallelize(case[0], mesh, case[1], preset=preset)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-3)
    if saves:
        losses_of(parallel, case, 2, optimizer)
        parallel.save(f"{folder}/step2", optimizer, step=2)
        parallel.save(f"{folder}/step2", optimizer, step=2)
    else:
        assert parallel.load(f"{folder}/step2", optimizer) == 2
    losses_of(parallel, case, 1, optimizer)
    same_weights(parallel, model, 1e-4)


def names_and_groups(mesh: tuple[int, ...]) -> None:
    """Parameters carry the user's names, so parameter groups work by name; schedulers too."""
    case = models.gpt2()
    single = copy.deepcopy(case[0])
    parallel = autopar.parallelize(case[0], mesh, case[1], preset="fsdp")
    assert [n for n, _ in parallel.named_parameters()] == [n for n, _ in single.named_parameters()]
    for model in (single, parallel):
        decay = [p for n, p in model.named_parameters() if n.endswith("weight")]
        rest = [p for n, p in model.named_parameters() if not n.endswith("weight")]
        groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=1e-3)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
        for _ in range(2):
            out = model(**case[1])
            (out if torch.is_tensor(out) else out.loss).backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    same_weights(parallel, single, 1e-4)


def microbatches(name: str, mesh: tuple[int, ...], preset: str | None, local: bool) -> None:
    """Two and four microbatches give the gradients of the whole batch, ignored targets included."""
    case = models.CASES[name]()
    single = copy.deepcopy(case[0])
    want = eager_loss(single, case[1], case[2])
    want.backward()
    gradients = {key: p.grad for key, p in single.named_parameters()}
    scale = max(float(g.abs().max()) for g in gradients.values() if g is not None)
    parallel = autopar.parallelize(
        case[0],
        mesh,
        case[1],
        loss=case[2],
        preset=preset,
        batches=autopar.Batches(local="local" if local else "global" == "local"),
    )
    batch = dict(case[1])
    if local:
        size = models.BATCH // parallel.data_replicas
        start = parallel.data_rank * size
        batch = {key: value[start : start + size] for key, value in batch.items()}
    for count in (1, 2, 4):
        loss = parallel.train_step(**batch, microbatches=count)
        assert abs(float(loss) - float(want.detach())) < 1e-5, count
        for key, parameter in parallel.named_parameters():
            assert isinstance(parameter.grad, DTensor)
            difference = float((parameter.grad.full_tensor() - gradients[key]).abs().max())
            assert difference <= 1e-5 * scale, f"{count} microbatches, {key}: {difference}"
        parallel.zero_grad()


def refused_microbatches(name: str, mesh: tuple[int, ...], count: int) -> str:
    """What a model hears that cannot be trained in parts."""
    case = models.CASES[name]()
    parallel = autopar.parallelize(case[0], mesh, case[1], loss=case[2])
    try:
        parallel.train_step(**case[1], microbatches=count)
    except autopar.AutoparError as error:
        return str(error)
    raise AssertionError("microbatches were accepted")


def bfloat16(mesh: tuple[int, ...], preset: str) -> None:
    """bfloat16 compute: weights, gradients and their sums in float32, traffic as predicted."""
    case = models.gpt2()
    low = copy.deepcopy(case[0])
    for parameter in low.parameters():
        parameter.data = parameter.data.bfloat16()
    want = low(**case[1]).loss
    want.backward()
    parallel = autopar.parallelize(case[0], mesh, case[1], preset=preset, precision="bfloat16")
    with CountTraffic(parallel.device_mesh) as counted:
        parallel._agreed = True
        loss = parallel(**case[1])
        counted.direction = "backward"
        loss.backward()
    check_traffic(parallel, parallel.plan, counted)
    assert abs(float(loss.detach()) - float(want.detach())) < 2e-2
    gradients = {k: p.grad.float() for k, p in low.named_parameters()}
    scale = max(float(g.abs().max()) for g in gradients.values())
    for key, parameter in parallel.named_parameters():
        assert parameter.dtype == torch.float32 and parameter.grad.dtype == torch.float32, key
        difference = float((parameter.grad.full_tensor() - gradients[key]).abs().max())
        assert difference <= 2e-2 * scale, f"{key}: {difference} of {scale}"
    assert any("bfloat16" in tensor.dtype for tensor in parallel.graph.tensors.values())


def bfloat16_norms(mesh: tuple[int, ...], preset: str) -> None:
    """Batch norms compute in bfloat16 too, beside weights and statistics in float32."""
    model, batch, loss = models.cnn()
    parallel = autopar.parallelize(
        model, mesh, batch, loss=loss, preset=preset, precision="bfloat16"
    )
    found = parallel(**batch)
    found.backward()
    want = eager_loss(model, batch, loss)
    want.backward()
    assert abs(found.item() - want.item()) < 2e-2
    scale = max(float(p.grad.abs().max()) for p in model.parameters() if p.grad is not None)
    for key, parameter in model.named_parameters():
        mine = parallel.get_parameter(key).grad.full_tensor()
        assert float((mine - parameter.grad).abs().max()) <= 5e-2 * scale, key
    for key, buffer in model.named_buffers():
        torch.testing.assert_close(parallel.get_buffer(key), buffer, atol=2e-2, rtol=2e-2)


def autocast(mesh: tuple[int, ...], preset: str) -> None:
    """torch.autocast: the casts stand in the emitted code; results as under autocast alone."""
    case = models.gpt2()
    single = copy.deepcopy(case[0])
    region = torch.autocast("cpu", dtype=torch.bfloat16)
    with region:
        want = single(**case[1]).loss
    want.backward()
    parallel = autopar.parallelize(case[0], mesh, case[1], preset=preset, precision=region)
    loss = parallel(**case[1])
    loss.backward()
    assert "torch.bfloat16" in parallel.source
    assert abs(float(loss.detach()) - float(want.detach())) < 1e-2
    gradients = {k: p.grad for k, p in single.named_parameters()}
    scale = max(float(g.abs().max()) for g in gradients.values())
    for key, parameter in parallel.named_parameters():
        difference = float((parameter.grad.full_tensor() - gradients[key]).abs().max())
        assert difference <= 2e-2 * scale, f"{key}: {difference} of {scale}"


def message_of(call: Callable[[], Any]) -> str:
    """The error that autopar raises."""
    try:
        call()
    except autopar.AutoparError as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("nothing was raised")


def different_models(mesh: tuple[int, ...]) -> str:
    """Rank 1 has one layer more."""
    case = models.gpt2(layers=1 + int(os.environ["RANK"]))
    return message_of(lambda: autopar.parallelize(case[0], mesh, case[1]))


def different_examples(mesh: tuple[int, ...]) -> str:
    """Rank 1 has other example inputs."""
    case = models.mlp()
    inputs = {**case[1], "x": case[1]["x"] + int(os.environ["RANK"])}
    return message_of(lambda: autopar.parallelize(case[0], mesh, inputs, loss=case[2]))


def different_batches(mesh: tuple[int, ...]) -> str:
    """Rank 1 has another first batch."""
    case = models.mlp()
    parallel = autopar.parallelize(case[0], mesh, case[1], loss=case[2])
    inputs = {**case[1], "x": case[1]["x"] + int(os.environ["RANK"])}
    return message_of(lambda: parallel(**inputs))


def different_shapes(mesh: tuple[int, ...]) -> str:
    """Rank 1 has twice as many samples, which it has no program for."""
    case = models.mlp()
    parallel = autopar.parallelize(case[0], mesh, case[1], loss=case[2])
    times = 1 + int(os.environ["RANK"])
    inputs = {key: torch.cat([value] * times) for key, value in case[1].items()}
    return message_of(lambda: parallel(**inputs))


def different_shapes_of_stages(mesh: tuple[int, ...]) -> str:
    """The same of a pipeline."""
    case = models.mlp()
    parallel = autopar.parallelize(case[0], mesh, case[1], loss=case[2], pipeline=2)
    times = 1 + int(os.environ["RANK"])
    inputs = {key: torch.cat([value] * times) for key, value in case[1].items()}
    return message_of(lambda: parallel.train_step(**inputs))


def different_calls(mesh: tuple[int, ...]) -> str:
    """Ranks compare different things."""
    del mesh
    from autopar.runtime import agreement

    what = ("the weather", "the time")[int(os.environ["RANK"])]
    return message_of(lambda: agreement.assert_same_on_all_ranks(what, "fine"))


def different_options(mesh: tuple[int, ...]) -> str:
    """Rank 1 asks for another preset."""
    case = models.mlp()
    preset = ("ddp", "fsdp")[int(os.environ["RANK"])]
    return message_of(
        lambda: autopar.parallelize(case[0], mesh, case[1], loss=case[2], preset=preset)
    )


def wrong_mesh(mesh: tuple[int, ...]) -> str:
    """The mesh is not as large as the world."""
    case = models.mlp()
    return message_of(lambda: autopar.parallelize(case[0], mesh, case[1], loss=case[2]))


def first_rank_cannot_plan(mesh: tuple[int, ...]) -> str:
    """What only rank 0 does fails on all ranks with the same error."""
    case = models.mlp()
    return message_of(
        lambda: autopar.parallelize(case[0], mesh, case[1], loss=case[2], memory_limit=1000)
    )


def missing_input(mesh: tuple[int, ...]) -> str:
    """A call without the targets."""
    case = models.mlp()
    parallel = autopar.parallelize(case[0], mesh, case[1], loss=case[2])
    return message_of(lambda: parallel(x=case[1]["x"]))


def broken_source(mesh: tuple[int, ...], path: str) -> str:
    """An edited file that does not import."""
    case = models.mlp()
    return message_of(
        lambda: autopar.parallelize(
            case[0], mesh, case[1], loss=case[2], planning=autopar.Planning(source=path)
        )
    )


class Dropping(torch.nn.Module):
    """Dropout and attention dropout over a product; returns what was dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8, bias=False)
        torch.nn.init.ones_(self.linear.weight)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        dropped = torch.nn.functional.dropout(self.linear(x), 0.5)
        heads = dropped.reshape(x.shape[0], 1, 2, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.5)
        return {"loss": dropped.sum() + mixed.sum(), "dropped": dropped, "mixed": mixed}


def dropout(mesh: tuple[int, ...], constraints: dict[str, str] | None, preset: str | None) -> Any:
    """Local parts of the dropped tensor of three forwards; the third repeats the first."""
    torch.manual_seed(int(os.environ["RANK"]))
    found = []
    parallel = autopar.parallelize(
        Dropping(), mesh, {"x": torch.ones(64, 8)}, preset=preset, constraints=constraints,
        batches=autopar.Batches(outputs=["dropped"]),
    )  # fmt: skip
    before = parallel.seeds.state.clone()
    for repeat in range(3):
        if repeat == 2:
            parallel.seeds.state = before
        out = parallel(x=torch.ones(64, 8))
        out["loss"].backward()
        dropped = out["dropped"].to_local().detach()
        assert set(dropped.unique().tolist()) == {0.0, 16.0}
        found.append(dropped.tolist())
    return found


def recomputed_dropout(mesh: tuple[int, ...], preset: str) -> dict[str, list[float]]:
    """Loss and some gradients of a step with dropout, by what blocks do in the backward."""
    found = {}
    for mode in ("none", "selective", "full"):
        torch.manual_seed(0)
        model, batch, _ = models.gpt2(resid_pdrop=0.2, attn_pdrop=0.2)
        parallel = autopar.parallelize(model, mesh, batch, preset=preset, recompute=mode)
        assert len(parallel.plan.recompute) == (0 if mode == "none" else 2)
        assert ("recompute" in parallel.source) == (mode != "none")
        loss = parallel.train_step(microbatches=2, **batch)
        norm = parallel.clip_grad_norm_(1e9)
        found[mode] = [loss.item(), norm.item()]
        for name in ("transformer.h.0.mlp.c_fc.weight", "transformer.wte.weight"):
            gradient = dict(parallel.named_parameters())[name].grad
            assert isinstance(gradient, DTensor)
            found[mode] += gradient.full_tensor().flatten()[:50].tolist()
    return found


class Scalars(torch.nn.Module):
    """A parameter without dims, a tensor made in forward, a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.frozen = torch.nn.Linear(8, 8).requires_grad_(False)
        self.scale = torch.nn.Parameter(torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.frozen(self.linear(x)) * self.scale
        shifted = y.new_zeros(y.shape)
        shifted[:, 1:] = y[:, :-1].clone()
        return (y - shifted).abs().mean()


def scalars(mesh: tuple[int, ...], preset: str | None, folder: str) -> None:
    """Trains as one process does; its state dict can be copied, saved and loaded whole."""
    torch.manual_seed(0)
    inputs = {"x": torch.randn(8, 8)}
    case = (Scalars(), inputs, None)
    model, want = reference_steps(case, 2, torch.optim.SGD, lr=0.1)
    parallel = autopar.parallelize(case[0], mesh, inputs, preset=preset)
    whole = parallel.full_state_dict()
    optimizer = torch.optim.SGD([p for p in parallel.parameters() if p.requires_grad], lr=0.1)
    got = losses_of(parallel, case, 2, optimizer)
    assert all(abs(a - b) < 1e-5 for a, b in zip(got, want, strict=True)), (got, want)
    same_weights(parallel, model, 1e-5)
    copied = copy.deepcopy(parallel.state_dict())
    torch.save(parallel.state_dict(), f"{folder}/{os.environ['RANK']}.pt")
    parallel.load_state_dict(whole)
    assert abs(float(parallel(**inputs).detach()) - want[0]) < 1e-5
    parallel.load_state_dict(copied)
    same_weights(parallel, model, 1e-5)


def load_without_optimizer(mesh: tuple[int, ...], folder: str) -> str:
    """A checkpoint that holds no optimizer, asked for one."""
    case = models.mlp()
    parallel = autopar.parallelize(case[0], mesh, case[1], loss=case[2])
    parallel.save(f"{folder}/bare")
    optimizer = torch.optim.AdamW(parallel.parameters())
    return message_of(lambda: parallel.load(f"{folder}/bare", optimizer))


def scaled_steps(
    mesh: tuple[int, ...], preset: str | None, precision: str, clips: bool, optimizer: str
) -> list[float]:
    """float16 with loss scaling: the scales, skipped steps and weights of the single process.

    The scale starts so high that the first step overflows; step 2 has an input beyond float16; in
    step 4 one element of one gradient is infinite, on one rank alone where gradients are sharded.
    """
    case = models.mlp()
    region = torch.autocast("cpu", dtype=torch.float16)
    single = copy.deepcopy(case[0])
    if precision == "float16":
        single = single.half()
    masters = [p.detach().float().clone().requires_grad_() for p in single.parameters()]
    make = {
        "sgd": lambda ps: torch.optim.SGD(ps, lr=0.05),
        "fused": lambda ps: torch.optim.AdamW(ps, lr=1e-3, eps=1e-2, fused=True),
    }[optimizer]
    settings = {"init_scale": 2.0**24, "growth_interval": 3, "backoff_factor": 2.0**-10}
    reference, theirs = torch.amp.GradScaler("cpu", **settings), make(masters)
    parallel = autopar.parallelize(
        case[0], mesh, case[1], loss=case[2], preset=preset,
        precision=precision if precision == "float16" else region,
    )  # fmt: skip
    scaler, ours = parallel.grad_scaler(**settings), make(list(parallel.parameters()))
    scales = []
    for step in range(8):
        inputs = {key: value.clone() for key, value in case[1].items()}
        if step == 2:
            inputs["x"][-1] = 1e30
        with region if precision != "float16" else contextlib.nullcontext():
            low = {
                k: v.half() if precision == "float16" and k == "x" else v for k, v in inputs.items()
            }
            value = eager_loss(single, low, case[2])
        reference.scale(value).backward()
        for master, parameter in zip(masters, single.parameters(), strict=True):
            master.grad = parameter.grad.float()
        scaler.scale(parallel(**inputs)).backward()
        if step == 4:
            masters[2].grad[0, 0] = float("inf")
            gradient = parallel.get_parameter("middle.weight").grad
            if os.environ["RANK"] == "0" or gradient.placements[0].is_replicate():
                gradient.to_local()[0, 0] = float("inf")
        if clips:
            reference.unscale_(theirs)
            scaler.unscale_(ours)
            want = torch.nn.utils.clip_grad_norm_(masters, 0.5)
            got = parallel.clip_grad_norm_(0.5)
            assert bool(torch.isfinite(want)) == bool(torch.isfinite(got)), (step, want, got)
            if torch.isfinite(want):
                assert abs(float(got) - float(want)) <= 1e-2 * float(want), (step, want, got)
        reference.step(theirs)
        scaler.step(ours)
        reference.update()
        scaler.update()
        theirs.zero_grad()
        ours.zero_grad()
        single.zero_grad()
        with torch.no_grad():
            for master, parameter in zip(masters, single.parameters(), strict=True):
                parameter.copy_(master)
        assert scaler.get_scale() == reference.get_scale(), step
        scales.append(scaler.get_scale())
        weights = parallel.full_state_dict()
        for (key, _), master in zip(single.named_parameters(), masters, strict=True):
            difference = float((weights[key] - master.detach()).abs().max())
            assert torch.isfinite(weights[key]).all() and difference < 2e-3, (step, key, difference)
    return scales


class Sums(torch.nn.Module):
    """A mean loss whose sum over a shard is beyond float16."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(32, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.linear(x)
        return torch.nn.functional.mse_loss(out, out.detach() + 5.0)


def float16_means(mesh: tuple[int, ...], microbatches: int) -> None:
    """Mean losses do not overflow where the single process's do not."""
    torch.manual_seed(0)
    model, batch = Sums(), {"x": torch.randn(64, 32)}
    parallel = autopar.parallelize(model, mesh, batch, preset="ddp", precision="float16")
    scaler = parallel.grad_scaler(init_scale=1024.0)
    loss = parallel.train_step(microbatches=microbatches, scaler=scaler, **batch)
    assert abs(float(loss) - 25.0) < 0.1
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    scaler.unscale_(optimizer)
    single = copy.deepcopy(model)
    single(**batch).backward()
    for key, parameter in parallel.named_parameters():
        want = single.get_parameter(key).grad
        difference = float((parameter.grad.full_tensor() - want).abs().max())
        assert difference <= 1e-2 * float(want.abs().max()), (key, difference)
