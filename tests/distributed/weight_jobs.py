"""What the pool's workers do in tests of weights: where they come from, and where they go."""

from __future__ import annotations

import ctypes
import gc
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.tensor import DTensor

import autopar
from tests import models
from tests.distributed.jobs import message_of

os.environ.setdefault("AUTOPAR_CACHE", tempfile.mkdtemp(prefix="autopar_cache_"))
SEED = 7


def on_meta(make: Callable[[], models.Case]) -> models.Case:
    """The case with its model on the meta device."""
    with torch.device("meta"):
        meta = make()[0]
    batch = make()
    return meta, batch[1], batch[2]


def t5() -> models.Case:
    """T5 with its three tied embeddings."""
    import transformers

    settings = transformers.T5Config(
        vocab_size=models.VOCAB, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4,
        dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.T5ForConditionalGeneration(settings).train(), models.tokens(), None


def albert() -> models.Case:
    """ALBERT with shared layers and tied embeddings."""
    import transformers

    settings = transformers.AlbertConfig(
        vocab_size=models.VOCAB, embedding_size=16, hidden_size=32, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=64, max_position_embeddings=models.SEQUENCE,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.AlbertForMaskedLM(settings).train(), models.tokens(), None


class Attending(nn.Module):
    """Modules whose initialisers reach below them or are named otherwise; batch norm's buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 32, padding_idx=0)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.norm = nn.BatchNorm1d(32)
        self.head = nn.Linear(32, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = self.norm(x.flatten(0, 1))
        return nn.functional.cross_entropy(self.head(x), ids.flatten())


def attending() -> models.Case:
    """Plain torch modules, tied."""
    generator = torch.Generator().manual_seed(0)
    return Attending().train(), {"ids": torch.randint(0, 16, (8, 4), generator=generator)}, None


CASES: dict[str, Callable[[], models.Case]] = {
    **models.CASES, "t5": t5, "albert": albert, "attending": attending,
}  # fmt: skip


def in_one_process(model: nn.Module, init: Callable[[nn.Module], Any] | None) -> nn.Module:
    """to_empty, a seed, and apply: what `parallelize` says that a meta model becomes."""
    names = {name: id(p) for name, p in model.named_parameters(remove_duplicate=False)}
    model.to_empty(device="cpu")
    first: dict[int, nn.Parameter] = {}
    for name, parameter in list(model.named_parameters(remove_duplicate=False)):
        path, _, key = name.rpartition(".")
        tied = first.setdefault(names[name], parameter)
        setattr(model.get_submodule(path), key, tied)
    torch.manual_seed(SEED)

    def own(module: nn.Module) -> None:
        for method in ("_init_weights", "reset_parameters", "_reset_parameters"):
            if method == "_init_weights" and hasattr(model, method):
                return model._init_weights(module)
            if hasattr(module, method):
                return getattr(module, method)()

    with torch.no_grad():
        model.apply(init or own)
    return model


def uniform(module: nn.Module) -> None:
    """A user's initialiser."""
    for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
        tensor.data.uniform_(-0.1, 0.1) if tensor.is_floating_point() else tensor.zero_()


def initialised(
    name: str, mesh: tuple[int, ...], preset: str | None, init: Callable[[nn.Module], Any] | None
) -> None:
    """The shards of a meta model are those of the tensors that one process makes."""
    case = on_meta(CASES[name])
    torch.manual_seed(SEED if int(os.environ["RANK"]) == 0 else 99)
    parallel = autopar.parallelize(
        case[0], mesh, case[1], loss=case[2], preset=preset, weights=autopar.Weights(init=init)
    )
    assert all(t.is_meta for t in (*case[0].parameters(), *case[0].buffers()))
    single = in_one_process(on_meta(CASES[name])[0], init)
    same_values(parallel, single)
    result = parallel(**case[1])
    result.backward()
    assert torch.isfinite(result.detach())


def same_values(parallel: autopar.Parallel, single: nn.Module) -> None:
    """Equal to the bit, and every buffer, persistent or not."""
    want = single.state_dict()
    got = parallel.full_state_dict()
    assert got.keys() == want.keys(), got.keys() ^ want.keys()
    for key, value in want.items():
        assert torch.equal(got[key], value), key
    for key, buffer in single.named_buffers():
        assert torch.equal(parallel.get_buffer(key), buffer), key


def read(name: str, mesh: tuple[int, ...], preset: str | None, path: str, on: str = "meta") -> None:
    """Weights from files equal those of the model that they were saved from; then one step."""
    single = CASES[name]()
    case = on_meta(CASES[name]) if on == "meta" else CASES[name]()
    if on != "meta":
        for parameter in case[0].parameters():
            nn.init.zeros_(parameter)
    parallel = autopar.parallelize(
        case[0], mesh, case[1], loss=case[2], preset=preset, weights=path
    )
    same_values(parallel, single[0])
    check_ties(parallel, single[0])


def check_ties(parallel: autopar.Parallel, single: nn.Module) -> None:
    """What is one parameter in the user's model is one here."""
    names: dict[int, list[str]] = {}
    for name, parameter in single.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for group in names.values():
        assert len({id(parallel.get_parameter(name)) for name in group}) == 1, group


def written(name: str, mesh: tuple[int, ...], preset: str | None, path: str, size: float) -> None:
    """The weights of a real model, written whole."""
    case = CASES[name]()
    parallel = autopar.parallelize(case[0], mesh, case[1], loss=case[2], preset=preset)
    parallel.save_weights(path, file_size=size)


def checkpointed(name: str, mesh: tuple[int, ...], preset: str | None, path: str) -> None:
    """A checkpoint with its optimizer."""
    case = CASES[name]()
    parallel = autopar.parallelize(case[0], mesh, case[1], loss=case[2], preset=preset)
    parallel.save(path, torch.optim.AdamW(parallel.parameters()))


def anybodys(name: str, path: str) -> None:
    """A checkpoint of a plain state dict, as other trainers write it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state_dict_saver.save(CASES[name]()[0].state_dict(), checkpoint_id=path)


def loaded(name: str, mesh: tuple[int, ...], preset: str | None) -> None:
    """A plain state dict loads over zeros, and what comes back loads into the plain model."""
    single = CASES[name]()[0]
    plain = {k: v.detach().clone() for k, v in single.state_dict().items()}
    case = CASES[name]()
    for parameter in case[0].parameters():
        nn.init.zeros_(parameter)
    parallel = autopar.parallelize(case[0], mesh, case[1], loss=case[2], preset=preset)
    before = float(_loss(parallel(**case[1])))
    parallel.load_state_dict(plain)
    same_values(parallel, single)
    case[0].load_state_dict(parallel.full_state_dict())
    assert abs(float(_loss(parallel(**case[1]))) - before) > 1e-4, "the step used old leaves"
    for key, value in case[0].state_dict().items():
        assert torch.equal(value, plain[key]), key


def _loss(result: Any) -> torch.Tensor:
    return (result if isinstance(result, torch.Tensor) else result.loss).detach()


def load_errors(mesh: tuple[int, ...]) -> list[str]:
    """What a state dict hears that is missing, unexpected, mis-shaped, or unties what is tied."""
    case = models.gpt2()
    plain = {k: v.detach().clone() for k, v in case[0].state_dict().items()}
    parallel = autopar.parallelize(case[0], mesh, case[1], preset="fsdp")
    bias = "transformer.h.1.mlp.c_fc.bias"
    lacking = {k: v for k, v in plain.items() if k != bias}
    wrong: list[Mapping[str, torch.Tensor]] = [
        lacking,
        {**plain, "extra.weight": torch.zeros(2)},
        {**plain, bias: plain[bias][:-1]},
        {**plain, "lm_head.weight": plain["lm_head.weight"] + 1},
    ]
    messages = [message_of(lambda state=state: parallel.load_state_dict(state)) for state in wrong]
    messages.append(message_of(lambda: parallel.load_state_dict(plain, assign=True)))
    messages.append(message_of(lambda: parallel.load_weights(lacking)))
    extra = {**plain, "extra.weight": torch.zeros(2)}
    messages.append(message_of(lambda: autopar.parallelize(case[0], mesh, case[1], weights=extra)))
    parallel.load_state_dict({k: v for k, v in plain.items() if k != "lm_head.weight"})
    result = parallel.load_state_dict({**lacking, "extra": torch.zeros(1)}, strict=False)
    assert (result.missing_keys, result.unexpected_keys) == ([bias], ["extra"])
    return messages


class Bare(nn.Module):
    """Holds a parameter that nothing initialises."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.linear(x) * self.scale).square().mean()


class AtOnce(Bare):
    """Initialises everything from the top."""

    def reset_parameters(self) -> None:
        for parameter in self.parameters():
            nn.init.normal_(parameter)


class Deep(nn.Module):
    """Sets all weights of two layers from the top."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))

    def reset_parameters(self) -> None:
        for parameter in self.parameters():
            nn.init.normal_(parameter)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


def init_errors(mesh: tuple[int, ...], path: str) -> list[str]:
    """What initialisers hear that cannot be run module by module."""
    batch = {"x": torch.ones(8, 8)}
    messages = []
    for make in (Bare, Deep):
        with torch.device("meta"):
            model = make()
        messages.append(message_of(lambda model=model: autopar.parallelize(model, mesh, batch)))
        assert all(p.is_meta for p in model.parameters()), "the user's model was changed"
    messages.append(
        message_of(
            lambda: autopar.parallelize(Bare(), mesh, batch, weights=autopar.Weights(init=uniform))
        )
    )
    with torch.device("meta"):
        model = Bare()
    messages.append(message_of(lambda: autopar.parallelize(model, mesh, batch, weights=path)))
    return messages


def adapters_on_loaded(mesh: tuple[int, ...], path: str) -> None:
    """Weights where there are some; init= makes what they lack, and nothing else."""
    with torch.device("meta"):
        model = Bare()
    batch = {"x": torch.ones(8, 8)}

    def init(module: nn.Module) -> None:
        for parameter in module.parameters(recurse=False):
            nn.init.constant_(parameter, 3.0)

    parallel = autopar.parallelize(model, mesh, batch, weights=autopar.Weights(path, init=init))
    state = parallel.full_state_dict()
    torch.manual_seed(SEED)
    assert torch.equal(state["linear.weight"], nn.Linear(8, 8).weight)
    assert torch.equal(state["scale"], torch.full((8,), 3.0))


class Stack(nn.Module):
    """Equal layers of 4 MiB in float32 each."""

    def __init__(self, layers: int, width: int = 1024) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


def peak(mesh: tuple[int, ...], layers: int, path: str | None) -> tuple[int, int, int]:
    """Bytes of the shards, of one parameter, and by which resident memory grew at its peak.

    A small model goes before, so that what torch and the planner need once is not counted.
    """
    batch = {"x": torch.ones(8, 1024)}
    grown = 0
    for count in (2, layers):
        with torch.device("meta"):
            model = Stack(count)
        weights = None if path is None else f"{path}/{count}.safetensors"
        gc.collect()
        before = forget_peak()
        parallel = autopar.parallelize(model, mesh, batch, preset="fsdp", weights=weights)
        grown = resident("VmHWM") - before
    return local_nbytes(parallel), 1024 * 1024 * 4, grown


def forget_peak() -> int:
    """Let the kernel count the peak of resident memory anew; what is resident now.

    Free pages that the allocator holds go back first: a worker has done other jobs before.
    """
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return resident("VmRSS")


def resident(what: str) -> int:
    """A line of /proc/self/status, in bytes."""
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith(what))
    return int(line.split()[1]) * 1024


def local_nbytes(parallel: autopar.Parallel) -> int:
    """Bytes of the shards of this rank."""
    parts = (p.to_local() for p in parallel.parameters() if isinstance(p, DTensor))
    return sum(p.numel() * p.element_size() for p in parts)
