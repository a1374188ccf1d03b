"""Optimizers, their groups, schedulers, scalers."""

from __future__ import annotations

from tests.habits.registry.habit import DIFFERS, EQUAL, Habit

LOOP = """
for step in range(3):
    optimizer.zero_grad()
    train(model, batch(step))
    optimizer.step()
"""


def _optimizer(made: str) -> Habit:
    return Habit(f"`{made}`", f"\noptimizer = {made}{LOOP}")


def _scheduler(made: str, step: str = "") -> Habit:
    code = f"""
scheduler = torch.optim.lr_scheduler.{made}
result = []
for step in range(4):
    optimizer.zero_grad()
    loss = train(model, batch(step))
    optimizer.step()
    scheduler.step({step})
    result.append(optimizer.param_groups[0]["lr"])
"""
    return Habit(f"`{made}`", code, ddp=DIFFERS if step else EQUAL)


GROUPED = """
decayed, others = [], []
for module in own.modules():
    for name, p in module.named_parameters(recurse=False):
        (decayed if isinstance(module, nn.Linear) and name == "weight" else others).append(p)
groups = [{"params": decayed, "weight_decay": 0.3}, {"params": others, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=0.01)
"""
BY_NAME = """
groups = [
    {"params": [p for n, p in model.named_parameters() if "norm" not in n], "weight_decay": 0.3},
    {"params": [p for n, p in model.named_parameters() if "norm" in n], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=0.01)
"""
BY_DIMS = """
groups = [
    {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.3},
    {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=0.01)
"""

OPTIMIZERS: tuple[Habit, ...] = (
    _optimizer("torch.optim.AdamW(model.parameters(), lr=0.01)"),
    _optimizer("torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True)"),
    _optimizer("torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True)"),
    _optimizer("torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)"),
    _optimizer("torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)"),
    _optimizer("torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)"),
    _optimizer("torch.optim.SGD(model.parameters(), lr=0.01, maximize=True)"),
    _optimizer("torch.optim.Adagrad(model.parameters(), lr=0.01)"),
    _optimizer("torch.optim.RMSprop(model.parameters(), lr=0.01, centered=True)"),
    _optimizer("torch.optim.NAdam(model.parameters(), lr=0.01)"),
    _optimizer("torch.optim.RAdam(model.parameters(), lr=0.01)"),
    _optimizer("torch.optim.Adamax(model.parameters(), lr=0.01)"),
    _optimizer("torch.optim.Adadelta(model.parameters())"),
    _optimizer("torch.optim.ASGD(model.parameters(), lr=0.01)"),
    _optimizer("torch.optim.Rprop(model.parameters(), lr=0.01)"),
    _optimizer("torch.optim.AdamW(model.named_parameters(), lr=0.01)"),
    Habit(
        "`torch.optim.LBFGS` with a closure",
        """
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

def closure():
    optimizer.zero_grad()
    return train(model, batch(0))

for step in range(2):
    optimizer.step(closure)
""",
        in_stages="LBFGS",
        instead="an optimizer that treats each parameter by itself, such as AdamW",
    ),
    Habit(
        "`optimizer.step(closure)` with SGD",
        """
def closure():
    optimizer.zero_grad()
    return train(model, batch(0))

result = float(optimizer.step(closure))
""",
    ),
    Habit(
        "`torch.optim.Adafactor`", f"\noptimizer = torch.optim.Adafactor(model.parameters()){LOOP}"
    ),
    Habit(
        "`torch.optim.Muon` for matrices",
        """
matrices = [p for p in model.parameters() if p.ndim == 2]
optimizer = torch.optim.Muon(matrices, lr=0.01)
"""
        + LOOP,
    ),
    Habit(
        "an optimizer of one's own that normalises each gradient",
        """
class Normalised(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(group["lr"] * p.norm() * p.grad / p.grad.norm().clamp(min=1e-12))

optimizer = Normalised(model.parameters(), {"lr": 0.05})
"""
        + LOOP,
    ),
    Habit(
        "an optimizer of one's own that normalises by the norm of all gradients",
        """
class Clipped(torch.optim.SGD):
    def step(self):
        nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 0.1)
        super().step()

optimizer = Clipped(model.parameters(), lr=0.05)
"""
        + LOOP,
        in_stages="may need all parameters at once",
        instead="`model.clip_grad_norm_(0.1)` before `optimizer.step()`",
    ),
    Habit("weight-decay groups by `isinstance` of modules", GROUPED + LOOP),
    Habit("weight-decay groups by names", BY_NAME + LOOP),
    Habit("weight-decay groups by `p.ndim`", BY_DIMS + LOOP),
    Habit(
        "a learning rate per layer",
        """
optimizer = torch.optim.SGD(
    [{"params": list(m.parameters()), "lr": 0.1 / (i + 1)} for i, m in enumerate(own.layers)],
    lr=0.01,
)
"""
        + LOOP,
    ),
    Habit(
        "`optimizer.add_param_group` in the midst of training",
        """
optimizer = torch.optim.SGD([p for p in model.parameters() if p.ndim > 1], lr=0.05, momentum=0.9)
train(model, batch(4))
optimizer.step()
optimizer.add_param_group({"params": [p for p in model.parameters() if p.ndim < 2], "lr": 0.01})
"""
        + LOOP,
    ),
    Habit(
        "two optimizers for two parts",
        """
heads = [p for n, p in own.named_parameters() if n.startswith("head")]
bodies = [p for n, p in own.named_parameters() if not n.startswith("head")]
optimizers = [torch.optim.SGD(part, lr=0.1) for part in (heads, bodies) if part]
for step in range(2):
    model.zero_grad()
    train(model, batch(step))
    for optimizer in optimizers:
        optimizer.step()
""",
    ),
    Habit(
        "an optimizer of some parameters, the rest never stepped",
        """
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.ndim > 1], lr=0.01)
"""
        + LOOP,
    ),
    Habit(
        "the learning rate set: `group['lr'] = ...`",
        """
for step in range(3):
    for group in optimizer.param_groups:
        group["lr"] = 0.1 / (step + 1)
    optimizer.zero_grad()
    train(model, batch(step))
    optimizer.step()
""",
    ),
    Habit(
        "a learning rate that is a tensor",
        """
optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01), foreach=False)
"""
        + LOOP,
    ),
    _scheduler("StepLR(optimizer, 2, gamma=0.1)"),
    _scheduler("CosineAnnealingLR(optimizer, T_max=4)"),
    _scheduler("LambdaLR(optimizer, lambda step: min(1.0, step / 3))"),
    _scheduler("OneCycleLR(optimizer, 0.1, total_steps=8)"),
    _scheduler("ReduceLROnPlateau(optimizer, patience=0)", "loss.detach()"),
    Habit(
        "`SequentialLR` of a warm-up and a decay",
        """
rates = torch.optim.lr_scheduler
scheduler = rates.SequentialLR(
    optimizer,
    [rates.LinearLR(optimizer, 0.1, total_iters=2), rates.ExponentialLR(optimizer, 0.5)],
    milestones=[2],
)
for step in range(4):
    optimizer.zero_grad()
    train(model, batch(step))
    optimizer.step()
    scheduler.step()
""",
    ),
    Habit(
        "`torch.amp.GradScaler` around the loss",
        """
scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
for step in range(2):
    optimizer.zero_grad()
    scaler.scale(model(**batch(step))).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        in_stages="Call parallel.train_step(**batch)",
        instead="`model.train_step(scaler=model.grad_scaler(), **batch)`",
    ),
    Habit(
        "`scaler.unscale_` before clipping",
        """
scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
scaler.scale(model(**batch(0))).backward()
scaler.unscale_(optimizer)
result = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
scaler.step(optimizer)
scaler.update()
""",
        in_stages="Call parallel.train_step(**batch)",
        instead="`model.train_step(scaler=model.grad_scaler(), **batch)`, `scaler.unscale_`, "
        "`model.clip_grad_norm_`",
    ),
    Habit(
        "loss scaling by hand: `(loss * 1024).backward()`, gradients divided",
        """
(model(**batch(0)) * 1024).backward()
for p in model.parameters():
    p.grad.div_(1024)
optimizer.step()
""",
        in_stages="Call parallel.train_step(**batch)",
        instead="`model.train_step(scaler=model.grad_scaler(), **batch)`",
    ),
    Habit(
        "`optimizer.register_step_post_hook`",
        """
calls = []
optimizer.register_step_post_hook(lambda *_: calls.append(1))
"""
        + LOOP
        + "result = len(calls)",
    ),
    Habit(
        "`optimizer.register_step_pre_hook` that clips",
        """
optimizer.register_step_pre_hook(
    lambda optimizer, *_: nn.utils.clip_grad_value_(optimizer.param_groups[0]["params"], 0.01)
)
"""
        + LOOP,
    ),
    Habit(
        "the optimizer's state cleared: `optimizer.state.clear()`",
        """
train(model, batch(0))
optimizer.step()
optimizer.state.clear()
"""
        + LOOP,
    ),
    Habit(
        "momentum edited: `optimizer.state[p]['momentum_buffer'].mul_(0.5)`",
        """
train(model, batch(0))
optimizer.step()
for p in model.parameters():
    optimizer.state[p]["momentum_buffer"].mul_(0.5)
"""
        + LOOP,
    ),
    Habit(
        "`optimizer.state_dict()` into a new optimizer",
        """
train(model, batch(0))
optimizer.step()
saved = copy.deepcopy(optimizer.state_dict())
optimizer = sgd(model)
optimizer.load_state_dict(saved)
"""
        + LOOP,
    ),
    Habit(
        "the scheduler's and the scaler's `state_dict` into new ones",
        """
rates = torch.optim.lr_scheduler
scheduler = rates.StepLR(optimizer, 1, gamma=0.5)
train(model, batch(0))
optimizer.step()
scheduler.step()
saved = copy.deepcopy([optimizer.state_dict(), scheduler.state_dict()])
optimizer = sgd(model)
scheduler = rates.StepLR(optimizer, 1, gamma=0.5)
optimizer.load_state_dict(saved[0])
scheduler.load_state_dict(saved[1])
train(model, batch(1))
optimizer.step()
scheduler.step()
result = optimizer.param_groups[0]["lr"]
""",
    ),
    Habit(
        "an optimizer made of the model before it was parallel",
        """
plain = Net().double()
optimizer = sgd(plain)
model = prepare(plain)
train(model, batch(0))
optimizer.step()
""",
        says="Create the optimizer from parallel.parameters()",
        instead="make it behind `parallelize`: `torch.optim.SGD(model.parameters())`",
        remedy="""
plain = Net().double()
model = prepare(plain)
optimizer = sgd(model)
train(model, batch(0))
optimizer.step()
""",
    ),
    Habit(
        "an optimizer of one's own that loops over `p.add_(p.grad)`",
        """
for step in range(2):
    train(model, batch(step))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(p.grad, alpha=-0.1)
    model.zero_grad()
""",
    ),
    Habit(
        "an update through `.data`: `p.data.add_(p.grad.data, alpha=-lr)`",
        """
for step in range(2):
    train(model, batch(step))
    for p in model.parameters():
        p.data.add_(p.grad.data, alpha=-0.1)
    model.zero_grad()
""",
    ),
    Habit(
        "LARS and LAMB: a rate by the norms of weight and gradient",
        """
train(model, batch(0))
with torch.no_grad():
    for p in model.parameters():
        trust = p.norm() / p.grad.norm().clamp(min=1e-12)
        p.sub_(0.001 * trust * p.grad)
""",
        in_stages="Call parallel.clip_grad_norm_",
        instead="take the norms of `p.full_tensor()` and `p.grad.full_tensor()`",
        remedy="""
train(model, batch(0))
with torch.no_grad():
    for p in model.parameters():
        trust = p.full_tensor().norm() / p.grad.full_tensor().norm().clamp(min=1e-12)
        p.sub_(0.001 * float(trust) * p.grad)
""",
    ),
)
