"""What people do with the module that they train, on ranks: against the same on the plain model."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import utils

import autopar

WIDTH, SAMPLES = 8, 8


class Block(nn.Module):
    """A residual block with one of each kind of module that has a mode or settings."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.norm = nn.LayerNorm(2 * WIDTH)
        self.act = torch.relu
        self.drop = nn.Dropout(dropout)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.scales = [1.0, 1.0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.down(self.drop(self.act(self.norm(self.up(x)))))
        return x * self.scales[0] + made * self.scales[1]


class Net(nn.Module):
    """Three equal blocks, each before a batch norm."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.config = SimpleNamespace(scale=1.0, inner={"shift": 0.0})
        self.layers = nn.ModuleList(Block(dropout) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm1d(WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = norm(layer(x))
        made: torch.Tensor = self.head(x) * self.config.scale + self.config.inner["shift"]
        return made

    def pooled(self, x: torch.Tensor) -> torch.Tensor:
        """A method that people call beside forward."""
        made: torch.Tensor = self.head(x).mean()
        return made


class Frozen(Net):
    """Its first batch norm stays in evaluation mode, as detection backbones do it."""

    def train(self, mode: bool = True) -> Frozen:
        super().train(mode)
        self.norms[0].eval()
        return self


def loss_of(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def batch_of(step: int = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(100 + step)
    return {"x": torch.randn(SAMPLES, WIDTH, dtype=torch.float64)}


def parallelized(model: nn.Module, how: str, **options: Any) -> Any:
    """The model under a preset, as the solver likes it, or on two stages."""
    given: dict[str, Any] = {"loss": loss_of, **options}
    if how == "stages":
        given |= {"pipeline": autopar.Pipeline(2, "gpipe", 1)}
    elif how != "solver":
        given |= {"preset": how}
    return autopar.parallelize(model, dist.get_world_size(), batch_of(), **given)


class Both:
    """A plain model and the parallel one, which are treated alike."""

    def __init__(self, how: str, model: nn.Module | None = None, **options: Any) -> None:
        torch.manual_seed(0)
        self.plain = (Net() if model is None else model).double()
        self.how = how
        self.parallel = parallelized(copy.deepcopy(self.plain), how, **options)
        self.optimizers = [sgd(self.plain), sgd(self.parallel)]

    def each(self, function: Callable[[Any], Any]) -> list[Any]:
        """The same done to both."""
        return [function(self.plain), function(self.parallel)]

    def steps(self, count: int = 2, first: int = 0) -> None:
        """Train, and compare losses."""
        for number in range(first, first + count):
            batch = batch_of(number)
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            want = loss_of(self.plain(**batch))
            want.backward()
            got = trained(self.parallel, batch)
            near(got, want, "loss")
            for optimizer in self.optimizers:
                optimizer.step()

    def evaluate(self) -> None:
        """Compare losses without gradients."""
        with torch.no_grad():
            near(self.parallel(**batch_of(7)), loss_of(self.plain(**batch_of(7))), "evaluation")

    def compare(self) -> None:
        """All weights and buffers."""
        got, want = self.parallel.full_state_dict(), self.plain.state_dict()
        assert list(got) == list(want) or self.how == "stages", (list(got), list(want))
        assert got.keys() == want.keys()
        for name, value in want.items():
            near(got[name], value, name)


def sgd(model: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def trained(parallel: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Forward and backward, as this kind of module does them."""
    if hasattr(type(parallel), "TRAINS_BY"):
        made: torch.Tensor = parallel.train_step(**batch)
        return made
    loss: torch.Tensor = parallel(**batch)
    loss.backward()
    return loss


def near(got: torch.Tensor, want: torch.Tensor, what: str) -> None:
    got = got.full_tensor() if isinstance(got, DTensor) else got
    scale = max(1.0, float(want.detach().abs().max())) if want.numel() else 1.0
    worst = float((got.detach().double() - want.detach().double()).abs().max())
    assert worst <= 1e-9 * scale, f"{what}: {worst} of {scale}"


# Habits that work as in one process.


def modes(how: str) -> None:
    """train() and eval() of the whole, of parts, of kinds; and a model that comes in eval()."""
    both = Both(how)
    both.steps()
    both.each(lambda m: m.norms[1].eval())
    both.steps(first=2)
    both.evaluate()
    both.each(lambda m: [n.eval() for n in m.modules() if isinstance(n, nn.BatchNorm1d)])
    both.steps(first=4)
    both.each(lambda m: m.eval())
    assert [m.training for m in both.parallel.modules()] == [False] * len(
        list(both.plain.modules())
    )
    both.evaluate()
    both.steps(first=6)
    both.each(lambda m: m.get_submodule("norms.0").train())
    both.evaluate()
    both.steps(first=8)
    both.each(lambda m: m.train())
    both.steps(first=10)
    both.each(lambda m: m.apply(lambda part: part.train(not isinstance(part, nn.LayerNorm))))
    both.steps(first=12)
    both.compare()


def came_in_eval(how: str) -> None:
    """As `from_pretrained` gives a model."""
    both = Both(how, Net(dropout=0.5).double().eval())
    assert not both.parallel.training
    both.evaluate()
    both.steps()
    both.each(lambda m: [n.train() for n in m.norms])
    both.steps(first=2)
    both.compare()


def own_train(how: str) -> None:
    """A model with a `train` of its own."""
    both = Both(how, Frozen().train())
    both.steps()
    both.each(lambda m: m.eval())
    both.evaluate()
    both.each(lambda m: m.train())
    both.steps(first=2)
    both.compare()


def attributes(how: str) -> None:
    """Numbers, functions, lists and configurations that forward reads."""
    both = Both(how, Net(dropout=0.5))
    both.each(lambda m: [setattr(layer.drop, "p", 0.0) for layer in m.layers])
    both.steps()
    changes: list[Callable[[Any], Any]] = [
        lambda m: setattr(m.layers[1].norm, "eps", 0.1),
        lambda m: setattr(m.norms[1], "momentum", 0.5),
        lambda m: setattr(m.layers[2], "act", torch.tanh),
        lambda m: m.layers[0].scales.__setitem__(0, 0.5),
        lambda m: setattr(m.config, "scale", 3.0),
        lambda m: m.config.inner.update(shift=0.25),
        lambda m: setattr(m, "config", m.config),
    ]
    for number, change in enumerate(changes):
        both.each(change)
        both.steps(1, first=number)
    both.evaluate()
    both.compare()


def tree(how: str) -> None:
    """Names, order, kinds, counts."""
    both = Both(how)
    plain, parallel = both.plain, both.parallel
    assert [(n, type(m)) for n, m in parallel.named_modules()][1:] == [
        (n, type(m)) for n, m in plain.named_modules()
    ][1:]
    assert parallel.config.scale == 1.0 and parallel.layers[0].drop.p == 0.0
    assert parallel.layers[0].down.bias is None and len(parallel.layers) == 3
    assert repr(parallel.layers[0]) == repr(plain.layers[0])
    assert [n for n, _ in parallel.named_buffers()] == [n for n, _ in plain.named_buffers()]
    if how == "stages":
        held = [n for n, _ in parallel.named_parameters()]
        assert held == [n for n, _ in plain.named_parameters() if n in held]
        return
    for kind in ("named_parameters", "named_buffers", "named_children"):
        want = [n for n, _ in getattr(plain, kind)()]
        assert [n for n, _ in getattr(parallel, kind)()] == want
    assert list(parallel.state_dict()) == list(plain.state_dict())
    count = sum(p.numel() for p in plain.parameters())
    assert sum(p.numel() for p in parallel.parameters()) == count
    assert torch.nn.utils.parameters_to_vector(parallel.parameters()).numel() == count


def decay_groups(how: str) -> None:
    """The groups of transformers' Trainer, a group added later, and a scheduler."""
    from transformers.trainer_pt_utils import get_parameter_names

    both = Both(how)
    found = []

    def optimizer(model: Any) -> Any:
        decayed = get_parameter_names(model, [nn.LayerNorm, nn.BatchNorm1d], ["bias"])
        found.append(decayed)
        named = [(n, p) for n, p in model.named_parameters() if not n.startswith("head")]
        groups: list[list[Any]] = [
            [p for n, p in named if n in decayed],
            [p for n, p in named if n not in decayed],
        ]
        made = torch.optim.SGD(
            [{"params": g, "weight_decay": d} for g, d in zip(groups, (0.3, 0.0), strict=True)],
            lr=0.05,
            momentum=0.9,
        )
        head = [p for n, p in model.named_parameters() if n.startswith("head")]
        made.add_param_group({"params": head, "lr": 0.01})
        return made

    both.optimizers = both.each(optimizer)
    assert found[0] == found[1] or how == "stages"
    schedulers = [torch.optim.lr_scheduler.StepLR(o, 1, gamma=0.5) for o in both.optimizers]
    for number in range(3):
        both.steps(1, first=number)
        for scheduler in schedulers:
            scheduler.step()
    both.compare()


def averages(how: str) -> None:
    """An average of the weights in a loop, put in for an evaluation and out again."""
    both = Both(how)
    kept = [[p.detach().clone() for p in m.parameters()] for m in (both.plain, both.parallel)]
    for number in range(2):
        both.steps(1, first=number)
        for average, model in zip(kept, (both.plain, both.parallel), strict=True):
            with torch.no_grad():
                for mean, now in zip(average, model.parameters(), strict=True):
                    mean.lerp_(now, 0.1)
    before = [[p.detach().clone() for p in m.parameters()] for m in (both.plain, both.parallel)]
    for source in (kept, before):
        for average, model in zip(source, (both.plain, both.parallel), strict=True):
            with torch.no_grad():
                for now, mean in zip(model.parameters(), average, strict=True):
                    now.copy_(mean)
        both.evaluate()
    both.steps(1, first=3)
    both.compare()


def inference(how: str) -> None:
    """Saving and reading inside of inference mode, and being made there; then training."""
    with torch.inference_mode():
        both = Both(how)
        for p in both.plain.parameters():
            assert not p.is_inference() or True
    torch.manual_seed(0)
    both.plain = Net().double()
    both.parallel.load_state_dict(both.plain.state_dict())
    both.optimizers[0] = sgd(both.plain)
    with torch.inference_mode():
        both.parallel(**batch_of(5))
        both.plain(**batch_of(5))
    both.steps()
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        both.parallel.state_dict()
        both.parallel.full_state_dict()
        if how != "stages":
            names: list[Any] = [folder]
            dist.broadcast_object_list(names)
            both.parallel.save(Path(names[0]) / "kept", both.optimizers[1])
            both.parallel.load(Path(names[0]) / "kept", both.optimizers[1])
            dist.barrier()
    both.each(lambda m: m.eval())
    with torch.inference_mode():
        near(both.parallel(**batch_of(7)), loss_of(both.plain(**batch_of(7))), "inference")
    both.each(lambda m: m.train())
    both.steps(first=2)
    both.compare()


def default_dtype(how: str) -> None:
    """Constants that forward makes follow the default dtype of the call."""

    class Adds(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * torch.full((4,), 0.1)

    both = Both(how, Adds())
    both.steps()
    torch.set_default_dtype(torch.float64)
    try:
        both.steps(first=2)
    finally:
        torch.set_default_dtype(torch.float32)
    both.steps(first=4)
    both.compare()


def clipped(how: str) -> None:
    """torch's own functions on gradients."""
    both = Both(how)
    for number in range(3):
        for optimizer in both.optimizers:
            optimizer.zero_grad()
        loss_of(both.plain(**batch_of(number))).backward()
        trained(both.parallel, batch_of(number))
        if number == 2:
            both.each(lambda m: utils.clip_grad_value_(m.parameters(), 1e-3))
        else:
            kind = (2.0, 1.0)[number]
            norms = both.each(partial(_norm, kind=kind))
            near(norms[1], norms[0], "norm")
            assert abs(float(norms[1]) - float(norms[0])) < 1e-9, norms
        norms = both.each(lambda m: utils.get_total_norm([p.grad for p in m.parameters()]))
        near(norms[1], norms[0], "norm of all")
        for optimizer in both.optimizers:
            optimizer.step()
    both.compare()


def _norm(model: Any, kind: float) -> torch.Tensor:
    return utils.clip_grad_norm_(model.parameters(), 0.01, kind)


def initialised(how: str) -> None:
    """`apply` with initialisers, values drawn for single weights, noise that is added."""

    def init(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.LayerNorm):
            module.weight.data.normal_(1.0, 0.1)
            nn.init.constant_(module.bias, 0.5)

    both = Both(how)
    both.steps()
    actions: list[Callable[[Any], Any]] = [
        lambda m: m.apply(init),
        lambda m: m.layers[1].apply(init),
        lambda m: nn.init.trunc_normal_(m.head.weight),
        lambda m: nn.init.kaiming_normal_(m.head.weight),
        lambda m: m.layers[0].up.reset_parameters(),
        lambda m: m.norms[2].reset_running_stats(),
        lambda m: [p.add_(torch.randn_like(p), alpha=0.01) for p in m.parameters()],
    ]
    for number, action in enumerate(actions):
        for model in (both.plain, both.parallel):
            torch.manual_seed(number)
            with torch.no_grad():
                action(model)
        both.compare()
        both.steps(1, first=number)
    both.compare()


def parts(how: str) -> None:
    """Writes into rows and columns: as in one process, or refused where a write would be lost."""
    both = Both(how)
    writes: list[Callable[[torch.Tensor], Any]] = [
        lambda w: w[1].zero_(),
        lambda w: w[:, 1].mul_(2),
        lambda w: w[1:3].add_(1),
        lambda w: w.narrow(0, 1, 2).zero_(),
        lambda w: w.chunk(2)[1].zero_(),
        lambda w: w.chunk(2, dim=1)[0].zero_(),
        lambda w: w.diagonal().zero_(),
        lambda w: w.data[1].fill_(3.0),
        lambda w: w.t()[1].zero_(),
        lambda w: w.view(-1)[3].zero_(),
        lambda w: w.masked_fill_(w.abs() < 0.1, 0.0),
    ]
    for name in ("layers.0.up.weight", "layers.1.down.weight"):
        for write in writes:
            try:
                with torch.no_grad():
                    write(both.parallel.get_parameter(name))
            except autopar.errors.InputError as error:
                assert "would change a copy" in str(error)
            else:
                with torch.no_grad():
                    write(both.plain.get_parameter(name))
            both.compare()
    both.steps()
    both.compare()


def data_in_place(how: str) -> None:
    """Writes through `.data`."""
    both = Both(how)
    both.steps()
    both.each(lambda m: [p.data.mul_(0.9) for p in m.parameters()])
    both.steps(first=2)
    both.each(lambda m: [p.data.clamp_(-0.2, 0.2) for p in m.parameters()])
    both.evaluate()
    both.compare()


def converted(how: str) -> None:
    """Conversions that change nothing."""
    both = Both(how)
    assert both.parallel.to("cpu") is both.parallel
    assert both.parallel.double() is both.parallel and both.parallel.cpu() is both.parallel
    both.parallel.layers[0].to(torch.float64)
    both.steps()
    both.compare()


def sequence(how: str) -> None:
    """A model with a length and items."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4))

    class Named(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = super().forward(x)
            return made

    both = Both(how, Named(*model))
    parallel = both.parallel
    assert len(parallel) == 3 and isinstance(parallel[0], nn.Linear) and parallel
    assert [type(m) for m in parallel] == [nn.Linear, nn.Tanh, nn.Linear]
    assert type(parallel[-1]) is nn.Linear and isinstance(parallel, type(parallel).__mro__[1])
    both.steps()
    both.compare()


def original(how: str) -> None:
    """The model that was given stays a model of its own."""
    torch.manual_seed(0)
    model = Net().double()
    parallel = parallelized(model, how)
    before = copy.deepcopy(model.state_dict())
    optimizer = sgd(parallel)
    trained(parallel, batch_of())
    optimizer.step()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    kept = parallel.full_state_dict()
    own = sgd(model)
    loss_of(model(**batch_of())).backward()
    own.step()
    for name, value in parallel.full_state_dict().items():
        assert torch.equal(value, kept[name]), name
        near(value, model.state_dict()[name], name)


WORK: dict[str, Callable[[str], None]] = {
    habit.__name__: habit
    for habit in (
        modes, came_in_eval, own_train, attributes, tree, decay_groups, averages, inference,
        default_dtype, clipped, initialised, parts, data_in_place, converted, sequence, original,
    )
}  # fmt: skip


# Habits that raise where they are done.


def _new_parametrization(parallel: Any) -> None:
    torch.nn.utils.parametrize.register_parametrization(parallel.head, "weight", nn.Identity())


def _prune(parallel: Any) -> None:
    from torch.nn.utils import prune

    prune.l1_unstructured(parallel.head, "weight", 0.5)


def _average(parallel: Any) -> None:
    torch.optim.swa_utils.AveragedModel(parallel)


def _pickle(value: Any) -> None:
    with tempfile.TemporaryFile() as file:
        torch.save(value, file)


def _autocast(parallel: Any) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        trained(parallel, batch_of())


def _data(parallel: Any) -> None:
    for p in parallel.parameters():
        p.data = p.data * 2
    trained(parallel, batch_of())


def _hooked(parallel: Any, name: str) -> None:
    handles = [getattr(p, name)(print) for _, p in parallel.named_parameters()]
    try:
        trained(parallel, batch_of())
    finally:
        for handle in handles:
            handle.remove()


def _functional(parallel: Any) -> None:
    weights = {n: p.detach() for n, p in parallel.named_parameters()}
    torch.func.functional_call(parallel, weights, (), batch_of())


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "submodule": (lambda p: p.layers[0](batch_of()["x"]), "cannot be called by itself"),
    "method": (lambda p: p.pooled(batch_of()["x"]), "head .Linear. cannot be called by itself"),
    "forward_hook": (lambda p: p.head.register_forward_hook(print), "would never be called"),
    "pre_hook": (lambda p: p.head.register_forward_pre_hook(print), "would never be called"),
    "backward_hook": (lambda p: p.head.register_full_backward_hook(print), "would never be called"),
    "module": (lambda p: setattr(p, "head", nn.Linear(WIDTH, 4)), "head cannot be set"),
    "new_module": (lambda p: p.add_module("other", nn.Linear(1, 1)), "other cannot be set"),
    "item": (lambda p: p.norms.__setitem__(0, nn.Identity()), r"norms.0 cannot be set"),
    "parameter": (
        lambda p: setattr(p.norms[0], "weight", nn.Parameter(torch.ones(WIDTH))),
        "norms.0.weight cannot be set",
    ),
    "new_parameter": (
        lambda p: p.register_parameter("more", nn.Parameter(torch.ones(1))),
        "more cannot be set",
    ),
    "deleted": (lambda p: delattr(p, "head"), "head cannot be set, replaced or removed"),
    "buffer": (
        lambda p: setattr(p.norms[0], "running_mean", torch.zeros(WIDTH)),
        r"norms.0.running_mean.copy_",
    ),
    "half": (lambda p: p.half(), "cannot become torch.float16"),
    "to": (lambda p: p.to(torch.bfloat16), "cannot become torch.bfloat16"),
    "part_to": (lambda p: p.layers[0].float(), "layers.0 is torch.float64"),
    "meta": (lambda p: p.to("meta"), "on meta"),
    "to_empty": (lambda p: p.to_empty(device="cpu"), "would discard"),
    "parametrized": (_new_parametrization, "cannot be set"),
    "pruned": (_prune, "cannot be set"),
    "weight_norm": (lambda p: torch.nn.utils.parametrizations.weight_norm(p.head), "cannot be set"),
    "deepcopy": (copy.deepcopy, "cannot be copied or pickled"),
    "part_deepcopy": (lambda p: copy.deepcopy(p.layers[0]), "cannot be copied or pickled"),
    "pickle": (_pickle, "cannot be copied or pickled"),
    "part_pickle": (lambda p: _pickle(p.layers), "cannot be copied or pickled"),
    "averaged": (_average, "cannot be copied or pickled"),
    "autocast": (_autocast, "precision=torch.autocast"),
    "gradient_hook": (partial(_hooked, name="register_hook"), "has a gradient hook"),
    "late_hook": (
        partial(_hooked, name="register_post_accumulate_grad_hook"),
        "has a gradient hook",
    ),
    "data": (_data, "weight.data was assigned"),
    "functional": (_functional, "cannot be set"),
    "ddp_module": (lambda p: p.module.head, "has no .module"),
}  # fmt: skip


def _clip(parallel: Any) -> None:
    utils.clip_grad_norm_(parallel.parameters(), 1.0)


def _total(parallel: Any) -> None:
    utils.get_total_norm([p.grad for p in parallel.parameters() if p.grad is not None])


def _squares(parallel: Any) -> None:
    """Each number alone may be read."""
    numbers = [p.grad.square().sum() for p in parallel.parameters() if p.grad is not None]
    assert all(float(each.full_tensor()) >= 0 for each in numbers)
    float(sum(numbers))


def _stacked(parallel: Any) -> None:
    torch.stack([p.grad.abs().max() for p in parallel.parameters() if p.grad is not None]).max()


def _drawn(parallel: Any) -> None:
    for p in parallel.parameters():
        nn.init.normal_(p)


IN_STAGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "clip": (_clip, "Call parallel.clip_grad_norm_"),
    "total_norm": (_total, "Call parallel.clip_grad_norm_"),
    "squares": (_squares, "Call parallel.clip_grad_norm_"),
    "stacked": (_stacked, "Call parallel.clip_grad_norm_"),
    "drawn": (_drawn, "of a pipeline"),
    "elsewhere": (
        lambda p: [torch.sum(m.weight) for m in p.modules() if isinstance(m, nn.Linear)],
        "ranks of another stage|mixed torch.Tensor",
    ),
}  # fmt: skip
"""What only a pipeline refuses."""
FROM_TORCH = {"parametrized", "pruned", "weight_norm"}
"""Refused by torch itself on ranks that lack the parameter."""


def refused(how: str, names: Iterable[str]) -> None:
    """Each raises, and the model trains on as if nothing had been tried."""
    both = Both(how)
    both.steps(1)
    for name in names:
        does, why = (REFUSED | IN_STAGES)[name]
        if name in FROM_TORCH and not isinstance(both.parallel.head.weight, torch.Tensor):
            continue
        _raises(lambda does=does: does(both.parallel), why, name)  # type: ignore[misc]
    for optimizer in both.optimizers:
        optimizer.zero_grad()
    both.steps(2, first=1)
    both.compare()


def _raises(does: Callable[[], Any], why: str, name: str) -> None:
    import re

    try:
        does()
    except (autopar.errors.InputError, AttributeError, RuntimeError) as error:
        assert re.search(why, str(error)), f"{name}: {error}"
    else:
        raise AssertionError(f"{name} did not raise")


def old_optimizer(how: str) -> None:
    """An optimizer that was made of the model before it was parallel."""
    torch.manual_seed(0)
    model = Net().double()
    optimizer = sgd(model)
    parallel = parallelized(model, how)
    trained(parallel, batch_of())
    _raises(optimizer.step, r"Create the optimizer from parallel.parameters\(\)", "old optimizer")


def run(name: str, how: str) -> None:
    """One habit that works."""
    WORK[name](how)
