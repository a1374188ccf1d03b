"""Samplers, loaders, metrics, calls of `torch.distributed`, libraries around the loop."""

from __future__ import annotations

from tests.habits.registry.habit import NOT_TRIED, Habit

STEP = """
optimizer.zero_grad()
train(model, batch(0))
optimizer.step()
"""
DATASET = """
from torch.utils.data import DataLoader, TensorDataset

whole = batch_of_all = tree(0, 16)
dataset = TensorDataset(whole["x"], whole["y"])
"""
CACHED = """
import functools

@functools.lru_cache
def index(count):
    return torch.arange(count) * 2 // 2

class Indexed(Net):
    def forward(self, x, y):
        return super().forward(x[:, index(x.shape[1])], y)

plain = Indexed().double()
if {}:
    plain(**tree(0))
model = prepare(plain)
train(model, batch(0))
"""

PROCESSES: tuple[Habit, ...] = (
    Habit(
        "a `DataLoader` that gives every rank the global batch",
        DATASET
        + """
for x, y in DataLoader(dataset, batch_size=8):
    optimizer.zero_grad()
    train(model, part({"x": x, "y": y}))
    optimizer.step()
""",
    ),
    Habit(
        "`DataLoader(shuffle=True)` with the seed that all ranks share",
        DATASET
        + """
drawn = torch.Generator().manual_seed(7)
for x, y in DataLoader(dataset, batch_size=8, shuffle=True, generator=drawn):
    optimizer.zero_grad()
    train(model, part({"x": x, "y": y}))
    optimizer.step()
""",
    ),
    Habit(
        "`DataLoader(drop_last=False)`: the last batch is shorter",
        DATASET
        + """
for x, y in DataLoader(dataset, batch_size=12):
    optimizer.zero_grad()
    train(model, part({"x": x, "y": y}))
    optimizer.step()
""",
    ),
    Habit(
        "`DistributedSampler` by `data_replicas` and `data_rank` with `Batches(local=True)`",
        DATASET
        + """
from torch.utils.data import DistributedSampler

model = prepare(Net().double(), tree(0, 8), batches=autopar.Batches(local=True))
optimizer = sgd(model)
sampler = DistributedSampler(dataset, model.data_replicas, model.data_rank, shuffle=False)
for x, y in DataLoader(dataset, batch_size=8 // model.data_replicas, sampler=sampler):
    optimizer.zero_grad()
    train(model, {"x": x, "y": y})
    optimizer.step()
""",
        plain=DATASET
        + """
model = prepare(Net().double())
optimizer = sgd(model)
order = [i for start in (0, 8) for i in range(start, start + 8)]
for start in (0, 8):
    optimizer.zero_grad()
    train(model, {key: value[start : start + 8] for key, value in whole.items()})
    optimizer.step()
""",
        says="means that every rank passes its own part of the batch",
        under=("megatron",),
        in_stages="is not available for pipelines yet",
        instead="pass every rank the global batch",
        ddp=NOT_TRIED,
    ),
    Habit(
        "`dist.barrier()` between steps",
        STEP
        + """
if ranks > 1:
    dist.barrier()
"""
        + STEP,
    ),
    Habit(
        "`dist.all_reduce` of the loss for the log",
        """
loss = train(model, batch(0)).detach().clone()
if ranks > 1:
    dist.all_reduce(loss)
    loss /= ranks
optimizer.step()
result = float(loss)
""",
    ),
    Habit(
        "`dist.all_gather_object` of metrics",
        """
loss = float(train(model, batch(0)))
found = [loss]
if ranks > 1:
    found = [None] * ranks
    dist.all_gather_object(found, loss)
optimizer.step()
result = sum(found) / ranks
""",
    ),
    Habit(
        "`dist.broadcast` of weights from rank 0, as scripts do at the start",
        """
if ranks > 1:
    for p in model.parameters():
        dist.broadcast(p.data, 0)
"""
        + STEP,
        says="communicates a parameter, gradient or state",
        instead="leave it out: `load_state_dict` gives all ranks the same weights",
    ),
    Habit(
        "`if rank == 0: print(loss.item())`",
        """
loss = train(model, batch(0))
if ranks == 1 or dist.get_rank() == 0:
    value = loss.item()
optimizer.step()
""",
    ),
    Habit(
        "early stopping that all ranks decide alike",
        """
best, waited = float("inf"), 0
for step in range(6):
    optimizer.zero_grad()
    loss = float(train(model, batch(step % 2)))
    optimizer.step()
    waited = 0 if loss < best else waited + 1
    best = min(best, loss)
    if waited == 1:
        break
result = step
""",
        ddp=NOT_TRIED,
    ),
    Habit(
        "early stopping that rank 0 decides and broadcasts",
        """
for step in range(4):
    optimizer.zero_grad()
    loss = float(train(model, batch(step)))
    optimizer.step()
    if first(loss < 1e9 and step == 1):
        break
result = step
""",
    ),
    Habit(
        "`torch.distributed.algorithms.Join` around the loop",
        """
from contextlib import nullcontext
from torch.distributed.algorithms.join import Join

with Join([model]) if ranks > 1 else nullcontext():
    train(model, batch(0))
optimizer.step()
""",
        says="join_hook",
        instead="leave it out: every rank passes the global batch, so none has fewer",
        remedy=STEP,
    ),
    Habit(
        "`ZeroRedundancyOptimizer(model.parameters(), ...)`",
        """
from torch.distributed.optim import ZeroRedundancyOptimizer

if ranks > 1:
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.05, momentum=0.9)
"""
        + STEP,
        says="communicates a parameter, gradient or state",
        instead="`preset='zero2'` or `'fsdp'` with any optimizer",
    ),
    Habit(
        "the plain model run on one rank alone, where a function under `lru_cache` makes tensors",
        CACHED.format("dist.get_rank() == 0"),
        says="or call cache_clear() of these functions",
        instead="run it on all ranks, or on none",
        remedy=CACHED.format("True"),
        ddp=NOT_TRIED,
    ),
    Habit(
        "`DistributedDataParallel(model)` around the parallel model",
        """
trained = nn.parallel.DistributedDataParallel(model) if ranks > 1 else model
trained(**batch(0)).backward()
""",
        says="cannot be wrapped in DistributedDataParallel",
        instead="leave it out",
        ddp=NOT_TRIED,
    ),
    Habit(
        "`fully_shard(model)` of the parallel model",
        """
from torch.distributed.fsdp import fully_shard

if ranks > 1:
    fully_shard(model)
train(model, batch(0))
""",
        says="Invariant encountered",
        instead="leave it out: `preset='fsdp'`",
        ddp=NOT_TRIED,
    ),
    Habit(
        "`parallelize` of a model that is parallel",
        """
model = prepare(prepare(Net().double()))
""",
        says="has been parallelized already",
        instead="pass the plain model",
        ddp=NOT_TRIED,
    ),
    Habit(
        "`model.join()`, `model.require_backward_grad_sync` of DDP",
        """
with model.join():
    train(model, batch(0))
""",
        plain=STEP,
        says="join",
        instead="leave it out",
        remedy=STEP,
        ddp=NOT_TRIED,
    ),
    Habit(
        "`model.register_comm_hook` of DDP",
        """
model.register_comm_hook(None, lambda state, bucket: None)
""",
        plain="pass",
        says="register_comm_hook",
        instead="leave it out; `precision=` for smaller gradients",
        ddp=NOT_TRIED,
    ),
    Habit(
        "`model.set_requires_gradient_sync(False)` of FSDP2",
        """
model.set_requires_gradient_sync(False)
""",
        plain="pass",
        says="set_requires_gradient_sync",
        instead="`with model.no_sync():`",
        ddp=NOT_TRIED,
    ),
    Habit(
        "`model.unshard()`, `model.reshard()`, `model.set_modules_to_forward_prefetch` of FSDP2",
        """
model.unshard()
""",
        plain="pass",
        says="unshard",
        instead="`model.full_state_dict()` for whole weights",
        ddp=NOT_TRIED,
    ),
    Habit(
        "Trainer: `get_parameter_names(model, [nn.LayerNorm])`",
        """
from transformers.trainer_pt_utils import get_parameter_names

decayed = get_parameter_names(own, [nn.LayerNorm], ["bias"])
groups = [[p for n, p in own.named_parameters() if (n in decayed) == side] for side in (0, 1)]
optimizer = torch.optim.SGD([{"params": g, "weight_decay": d} for g, d in zip(groups, (0, 0.3))], lr=0.1)
"""
        + STEP,
    ),
    Habit(
        "transformers' `get_linear_schedule_with_warmup`",
        """
from transformers import get_linear_schedule_with_warmup

scheduler = get_linear_schedule_with_warmup(optimizer, 2, 4)
for step in range(3):
    optimizer.zero_grad()
    train(model, batch(step))
    optimizer.step()
    scheduler.step()
result = scheduler.get_last_lr()
""",
    ),
    Habit(
        "Accelerate: `accelerator.unwrap_model`-like walk through `.module` and `_orig_mod`",
        """
found = model
while hasattr(found, "module") or hasattr(found, "_orig_mod"):
    found = getattr(found, "module", None) or found._orig_mod
result = type(found.head).__name__
""",
    ),
    Habit(
        "Lightning: the module in a module, `training_step` that calls `self.model(**batch)`",
        """
class Module(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def training_step(self, given):
        return train(self.inner, given)

module = Module(model)
optimizer = sgd(module)
module.train()
module.training_step(batch(0))
optimizer.step()
result = len(list(module.parameters())) == len(list(model.parameters()))
""",
    ),
    Habit(
        "a list of callbacks with `on_after_backward(model)`",
        """
def on_after_backward(module):
    for p in module.parameters():
        p.grad.clamp_(-0.01, 0.01)

train(model, batch(0))
on_after_backward(model)
optimizer.step()
""",
    ),
)
