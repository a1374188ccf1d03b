"""What is done to gradients, and asked of autograd."""

from __future__ import annotations

from tests.habits.registry.habit import NOT_TRIED, Habit

BY_STEP = "`loss = model.train_step(**batch)`: forward and backward are one on a pipeline"
INSTEAD_OF_NORM = "`model.clip_grad_norm_(max_norm)`, which returns the norm of all stages"
OVERFLOW = """
for step in range(2):
    train(model, batch(step))
    for name, p in own.named_parameters():
        if step == 1 and name == "head.bias":
            p.grad.fill_(float("nan"))
"""

GRADIENTS: tuple[Habit, ...] = (
    Habit(
        "`torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)`",
        """
train(model, batch(0))
result = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
optimizer.step()
""",
        in_stages="Call parallel.clip_grad_norm_",
        instead=INSTEAD_OF_NORM,
        remedy="""
train(model, batch(0))
result = model.clip_grad_norm_(0.1)
optimizer.step()
""",
    ),
    Habit(
        "`clip_grad_norm_` with `norm_type=inf`",
        """
train(model, batch(0))
result = nn.utils.clip_grad_norm_(model.parameters(), 0.1, norm_type=float("inf"))
optimizer.step()
""",
        in_stages="Call parallel.clip_grad_norm_",
        instead=INSTEAD_OF_NORM,
        remedy="""
train(model, batch(0))
result = model.clip_grad_norm_(0.1, norm_type=float("inf"))
optimizer.step()
""",
    ),
    Habit(
        "`clip_grad_norm_` of one submodule's parameters",
        """
train(model, batch(0))
result = nn.utils.clip_grad_norm_(own.head.parameters(), 0.01)
optimizer.step()
""",
        in_stages="only the gradients of this rank's stages",
        instead="clip all of them: `model.clip_grad_norm_(max_norm)`",
    ),
    Habit(
        "`clip_grad_value_`",
        """
train(model, batch(0))
nn.utils.clip_grad_value_(model.parameters(), 0.01)
optimizer.step()
""",
    ),
    Habit(
        "`torch.nn.utils.get_total_norm` of the gradients",
        """
train(model, batch(0))
result = nn.utils.get_total_norm([p.grad for p in model.parameters()])
""",
        in_stages="Call parallel.clip_grad_norm_",
        instead="`model.clip_grad_norm_(float('inf'))` returns it and scales nothing",
        remedy="""
train(model, batch(0))
result = model.clip_grad_norm_(float("inf"))
""",
    ),
    Habit(
        "the norm by hand: `sum(p.grad.norm() ** 2) ** 0.5`",
        """
train(model, batch(0))
result = float(sum(p.grad.norm() ** 2 for p in model.parameters()) ** 0.5)
""",
        in_stages="Call parallel.clip_grad_norm_",
        instead="`model.clip_grad_norm_(float('inf'))` returns it and scales nothing",
    ),
    Habit(
        "the norm of each parameter's gradient for the log",
        """
train(model, batch(0))
result = [float(p.grad.norm()) for n, p in own.named_parameters() if n == "layers.0.up.weight"]
""",
        in_stages="Call parallel.clip_grad_norm_",
        instead="`p.grad.full_tensor().norm()` on the ranks that hold the parameter",
    ),
    Habit(
        "squares added up as numbers: `sum(p.grad.square().sum().item() for p in ...)`",
        """
train(model, batch(0))
result = sum(p.grad.square().sum().item() for p in model.parameters())
""",
        in_stages="reads a number of",
        instead="`model.reduce_over_parameters(lambda p: p.grad.square().sum())`",
        remedy="""
train(model, batch(0))
result = model.reduce_over_parameters(lambda p: p.grad.square().sum())
""",
    ),
    Habit(
        "a step skipped `if any(p.grad.isnan().any() for p in ...)`",
        OVERFLOW
        + """
    if not any(p.grad.isnan().any() for p in model.parameters()):
        optimizer.step()
    optimizer.zero_grad()
""",
        in_stages="reads a number of",
        instead="`model.reduce_over_parameters(lambda p: p.grad.isnan().any(), 'any')`",
        remedy=OVERFLOW
        + """
    if not model.reduce_over_parameters(lambda p: p.grad.isnan().any(), "any"):
        optimizer.step()
    optimizer.zero_grad()
""",
    ),
    Habit(
        "`p.grad.mul_(0.5)` in place",
        """
train(model, batch(0))
for p in model.parameters():
    p.grad.mul_(0.5)
optimizer.step()
""",
    ),
    Habit(
        "`p.grad.data.div_(n)`",
        """
train(model, batch(0))
for p in model.parameters():
    p.grad.data.div_(3)
optimizer.step()
""",
    ),
    Habit(
        "`p.grad = p.grad * 0.5`: another tensor",
        """
for step in range(2):
    train(model, batch(step))
    for p in model.parameters():
        p.grad = p.grad * 0.5
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
""",
    ),
    Habit(
        "`torch.nan_to_num_(p.grad)`",
        """
train(model, batch(0))
for p in model.parameters():
    torch.nan_to_num_(p.grad)
optimizer.step()
""",
    ),
    Habit(
        "weight decay by hand: `p.grad.add_(p, alpha=0.1)`",
        """
train(model, batch(0))
with torch.no_grad():
    for p in model.parameters():
        p.grad.add_(p, alpha=0.1)
optimizer.step()
""",
    ),
    Habit(
        "`torch._foreach_mul_` over the gradients",
        """
train(model, batch(0))
torch._foreach_mul_([p.grad for p in model.parameters()], 0.5)
optimizer.step()
""",
    ),
    Habit(
        "gradients of one layer set to None or zero",
        """
train(model, batch(0))
for p in model.parameters():
    if p.ndim == 1:
        p.grad = None
    else:
        p.grad.zero_()
optimizer.step()
""",
    ),
    Habit(
        "the sign of the gradient",
        """
train(model, batch(0))
for p in model.parameters():
    p.grad.sign_()
optimizer.step()
""",
    ),
    Habit(
        "gradients copied before, and put back after",
        """
train(model, batch(0))
kept = [p.grad.clone() for p in model.parameters()]
optimizer.zero_grad()
train(model, batch(1))
for p, gradient in zip(model.parameters(), kept):
    p.grad = gradient
optimizer.step()
""",
    ),
    Habit(
        "the centred gradient: `g - g.mean()` of each parameter",
        """
train(model, batch(0))
for p in model.parameters():
    p.grad.sub_(p.grad.mean())
optimizer.step()
""",
    ),
    Habit(
        "an L2 penalty over `model.parameters()`",
        """
loss = model(**batch(0)) + 1e-2 * sum(p.pow(2).sum() for p in model.parameters())
loss.backward()
optimizer.step()
""",
        in_stages="Call parallel.train_step(**batch)",
        instead="`weight_decay` of the optimizer, or add `2e-2 * p` to `p.grad`",
        remedy="""
train(model, batch(0))
with torch.no_grad():
    for p in model.parameters():
        p.grad.add_(p, alpha=2e-2)
optimizer.step()
""",
    ),
    Habit(
        "an L1 penalty over matrices alone",
        """
loss = model(**batch(0))
loss = loss + 1e-2 * sum(p.abs().sum() for p in model.parameters() if p.ndim > 1)
loss.backward()
optimizer.step()
""",
        in_stages="Call parallel.train_step(**batch)",
        instead="add `1e-2 * p.sign()` to `p.grad`",
    ),
    Habit(
        "a penalty whose backward is its own",
        """
train(model, batch(0))
(1e-2 * sum(p.pow(2).sum() for p in model.parameters())).backward()
optimizer.step()
""",
    ),
    Habit(
        "`torch.autograd.grad(loss, model.parameters())`",
        """
loss = model(**batch(0))
result = torch.autograd.grad(loss, list(model.parameters()))
""",
        says="read p.grad",
        in_stages="Call parallel.train_step(**batch)",
        instead="`loss.backward()`, then read `p.grad`",
        remedy="""
train(model, batch(0))
result = tuple(p.grad for p in model.parameters())
model.zero_grad()
""",
        remedy_in_stages=False,
        ddp=NOT_TRIED,
    ),
    Habit(
        "`loss.backward(inputs=...)`",
        """
loss = model(**batch(0))
loss.backward(inputs=list(own.head.parameters()))
optimizer.step()
""",
        says="read p.grad",
        in_stages="Call parallel.train_step(**batch)",
        instead="`loss.backward()`, then `p.grad = None` of the others",
        remedy="""
train(model, batch(0))
for name, p in own.named_parameters():
    if not name.startswith("head"):
        p.grad = None
optimizer.step()
""",
        ddp=NOT_TRIED,
    ),
    Habit(
        "`loss.backward(create_graph=True)`",
        """
loss = model(**batch(0))
loss.backward(create_graph=True)
""",
        says="create_graph=True",
        in_stages="Call parallel.train_step(**batch)",
        instead="compute what needs second derivatives inside of forward or the loss",
        ddp=NOT_TRIED,
    ),
    Habit(
        "a gradient penalty: `autograd.grad(..., create_graph=True)` of the loss",
        """
loss = model(**batch(0))
gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
(loss + sum(g.pow(2).sum() for g in gradients)).backward()
""",
        says="create_graph=True",
        in_stages="Call parallel.train_step(**batch)",
        instead="compute what needs second derivatives inside of forward or the loss",
        ddp=NOT_TRIED,
    ),
    Habit(
        "gradients of the input: `x.requires_grad_()`",
        """
given = batch(0)
given["x"].requires_grad_()
train(model, given)
result = given["x"].grad
""",
        says="requires a gradient",
        instead="make it a parameter of the model",
        ddp=NOT_TRIED,
    ),
    Habit(
        "a module in front that is not in the model",
        """
front = nn.Linear(8, 8).double()
given = batch(0)
given["x"] = front(given["x"])
train(model, given)
result = front.weight.grad
""",
        says="requires a gradient",
        instead="make it a submodule of the model",
        ddp=NOT_TRIED,
    ),
    Habit(
        "`p.register_hook` on a parameter",
        """
handles = [p.register_hook(lambda g: g * 0.5) for p in model.parameters()]
try:
    train(model, batch(0))
finally:
    for handle in handles:
        handle.remove()
optimizer.step()
""",
        says="has a gradient hook",
        instead="do it to `p.grad` between backward and step",
        remedy="""
train(model, batch(0))
for p in model.parameters():
    p.grad.mul_(0.5)
optimizer.step()
""",
    ),
    Habit(
        "`register_post_accumulate_grad_hook`: an optimizer in backward",
        """
def update(p):
    with torch.no_grad():
        p.sub_(p.grad, alpha=0.1)
    p.grad = None

handles = [p.register_post_accumulate_grad_hook(update) for p in model.parameters()]
try:
    train(model, batch(0))
finally:
    for handle in handles:
        handle.remove()
""",
        says="has a gradient hook",
        instead="do it to `p` and `p.grad` behind the backward",
        remedy="""
train(model, batch(0))
with torch.no_grad():
    for p in model.parameters():
        p.sub_(p.grad, alpha=0.1)
        p.grad = None
""",
        ddp=NOT_TRIED,
    ),
    Habit(
        "`p.retain_grad()` of a parameter, which does nothing",
        """
for p in model.parameters():
    p.retain_grad()
train(model, batch(0))
optimizer.step()
""",
    ),
    Habit(
        "`torch.func.functional_call(model, weights, batch)`",
        """
weights = {name: p.detach() * 0.5 for name, p in model.named_parameters()}
result = torch.func.functional_call(model, weights, (), batch(0))
""",
        says="cannot be set",
        instead="write the values into the parameters, call the model, and write them back",
        remedy="""
kept = [p.detach().clone() for p in model.parameters()]
with torch.no_grad():
    for p in model.parameters():
        p.mul_(0.5)
    result = model(**batch(0))
    for p, old in zip(model.parameters(), kept):
        p.copy_(old)
""",
        ddp=NOT_TRIED,
    ),
    Habit(
        "`torch.func.grad` of a function that calls the model",
        """
def loss_of(weights):
    return torch.func.functional_call(model, weights, (), batch(0))

result = torch.func.grad(loss_of)({n: p.detach() for n, p in model.named_parameters()})
""",
        says="cannot be set",
        instead="`loss.backward()`, then read `p.grad`",
        ddp=NOT_TRIED,
    ),
    Habit(
        "sharpness-aware minimisation: two backwards around a climb",
        """
train(model, batch(0))
climbs = [0.05 * p.grad.sign() for p in model.parameters()]
with torch.no_grad():
    for p, climb in zip(model.parameters(), climbs):
        p.add_(climb)
optimizer.zero_grad()
train(model, batch(0))
with torch.no_grad():
    for p, climb in zip(model.parameters(), climbs):
        p.sub_(climb)
optimizer.step()
""",
    ),
    Habit(
        "parameters that took no part: `p.grad is None`",
        """
model = prepare(Idle().double())
train(model, batch(0))
result = [n for n, p in model.named_parameters() if p.grad is None and "idle" not in n]
torch.optim.AdamW(model.parameters(), weight_decay=0.5).step()
""",
        ddp=NOT_TRIED,
    ),
    Habit(
        "a gradient read between backwards under `no_sync()`",
        """
with sync(model, False):
    train(model, batch(0))
    for p in model.parameters():
        if p.grad is not None:
            p.grad.mul_(0.5)
train(model, batch(1))
optimizer.step()
""",
        says="no_sync",
        instead="scale behind the last backward, outside of `no_sync()`",
        ddp=NOT_TRIED,
    ),
    Habit(
        "a slice of a gradient zeroed: `p.grad[:1] = 0`",
        """
train(model, batch(0))
for name, p in own.named_parameters():
    if name == "layers.0.down.weight":
        p.grad[:1] = 0
optimizer.step()
""",
        says="would change a copy",
        under=("fsdp", "megatron"),
        instead="`whole = p.grad.full_tensor()`, write to it, then `p.grad.copy_(whole)`",
        remedy="""
train(model, batch(0))
for name, p in own.named_parameters():
    if name == "layers.0.down.weight":
        whole = p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad.clone()
        whole[:1] = 0
        p.grad.copy_(whole)
optimizer.step()
""",
    ),
    Habit(
        "gradient noise: `p.grad.add_(torch.randn_like(p.grad))`",
        """
train(model, batch(0))
torch.manual_seed(5)
for p in model.parameters():
    p.grad.add_(torch.randn_like(p.grad), alpha=0.01)
optimizer.step()
""",
        in_stages="of a pipeline",
        instead="draw on the plain model's shapes with a generator, and write with `copy_`",
    ),
    Habit(
        "a `for name, p in named_parameters()` loop with `dist.all_reduce(p.grad)` left in",
        """
train(model, batch(0))
for p in model.parameters():
    if ranks > 1:
        dist.all_reduce(p.grad)
        p.grad.div_(ranks)
optimizer.step()
""",
        says="communicates a parameter, gradient or state",
        instead="leave it out: gradients are summed already",
        remedy="""
train(model, batch(0))
optimizer.step()
""",
    ),
)
