"""The training loop."""

from __future__ import annotations

from tests.habits.registry.habit import DIFFERS, NOT_TRIED, Habit

PIPELINE = "A pipeline runs forward and backward together"
BY_STEP = "`loss = model.train_step(**batch)`: forward and backward are one on a pipeline"
STEP = """
optimizer.zero_grad()
train(model, batch(0))
optimizer.step()
"""

LOOPS: tuple[Habit, ...] = (
    Habit(
        "zero_grad, forward, backward, step",
        """
for step in range(3):
    optimizer.zero_grad()
    train(model, batch(step))
    optimizer.step()
""",
    ),
    Habit(
        "`loss = model(**batch); loss.backward()`",
        """
for step in range(2):
    optimizer.zero_grad()
    loss = model(**batch(step))
    loss.backward()
    optimizer.step()
result = loss.item()
""",
        in_stages="Call parallel.train_step(**batch)",
        instead=BY_STEP,
        remedy="""
for step in range(2):
    optimizer.zero_grad()
    loss = train(model, batch(step))
    optimizer.step()
result = loss.item()
""",
    ),
    Habit(
        "`optimizer.zero_grad(set_to_none=False)`",
        """
for step in range(3):
    optimizer.zero_grad(set_to_none=False)
    train(model, batch(step))
    optimizer.step()
""",
    ),
    Habit(
        "`model.zero_grad()` in place of the optimizer's",
        """
for step in range(3):
    model.zero_grad()
    train(model, batch(step))
    optimizer.step()
""",
    ),
    Habit(
        "`p.grad = None` in a loop over parameters",
        """
for step in range(3):
    for p in model.parameters():
        p.grad = None
    train(model, batch(step))
    optimizer.step()
""",
    ),
    Habit(
        "`p.grad.zero_()` in a loop over parameters",
        """
for step in range(3):
    for p in model.parameters():
        if p.grad is not None:
            p.grad.zero_()
    train(model, batch(step))
    optimizer.step()
""",
    ),
    Habit(
        "zero_grad behind the step instead of before the forward",
        """
for step in range(3):
    train(model, batch(step))
    optimizer.step()
    optimizer.zero_grad()
""",
    ),
    Habit(
        "gradients accumulated over several backwards",
        """
for step in range(4):
    train(model, batch(step))
    if step % 2:
        optimizer.step()
        optimizer.zero_grad()
""",
    ),
    Habit(
        "accumulation with the loss divided: `(loss / n).backward()`",
        """
for step in range(2):
    (model(**batch(step)) / 2).backward()
optimizer.step()
""",
        in_stages="Call parallel.train_step(**batch)",
        instead="`model.train_step(microbatches=n, **batch)` without stages; with stages, "
        "`pipeline=autopar.Pipeline(2, microbatches=n)`",
    ),
    Habit(
        "accumulation under `no_sync()`",
        """
for step in range(3):
    with sync(model, step == 2):
        train(model, batch(step))
optimizer.step()
""",
        in_stages="A pipeline has no no_sync()",
        instead="leave it out: a pipeline sums gradients once per `train_step`",
        remedy="""
for step in range(3):
    train(model, batch(step))
optimizer.step()
""",
    ),
    Habit(
        "every backward under `no_sync()`, the last alone outside, over two steps",
        """
for step in range(4):
    with sync(model, step % 2):
        train(model, batch(step))
    if step % 2:
        optimizer.step()
        optimizer.zero_grad()
""",
        in_stages="A pipeline has no no_sync()",
        instead="leave it out: a pipeline sums gradients once per `train_step`",
    ),
    Habit(
        "a forward without a backward",
        """
model(**batch(3))
train(model, batch(0))
model(**batch(4))
optimizer.step()
""",
        in_stages="Call parallel.train_step(**batch)",
        instead="under `torch.no_grad()`",
        remedy="""
with torch.no_grad():
    model(**batch(3))
train(model, batch(0))
with torch.no_grad():
    model(**batch(4))
optimizer.step()
""",
    ),
    Habit(
        "two forwards, one backward of the sum",
        """
loss = model(**batch(0)) + 0.5 * model(**batch(1))
loss.backward()
optimizer.step()
""",
        in_stages="Call parallel.train_step(**batch)",
        instead="one `train_step` per batch: gradients add up",
        ddp=NOT_TRIED,
    ),
    Habit(
        "two forwards, two backwards in the other order",
        """
first, second = model(**batch(0)), model(**batch(1))
second.backward()
first.backward()
optimizer.step()
""",
        in_stages="Call parallel.train_step(**batch)",
        instead="one `train_step` per batch: gradients add up",
        ddp=NOT_TRIED,
    ),
    Habit(
        "a backward twice with `retain_graph=True`",
        """
loss = model(**batch(0))
loss.backward(retain_graph=True)
loss.backward()
optimizer.step()
""",
        ddp=DIFFERS,
        in_stages="Call parallel.train_step(**batch)",
        instead="two `train_step`s of one batch",
        remedy="""
train(model, batch(0))
train(model, batch(0))
optimizer.step()
""",
    ),
    Habit(
        "a backward twice without it: the second raises",
        """
loss = model(**batch(0))
loss.backward()
try:
    loss.backward()
except RuntimeError as error:
    result = "second time" in str(error)
model.zero_grad()
train(model, batch(1))
optimizer.step()
""",
        in_stages="Call parallel.train_step(**batch)",
        instead=BY_STEP,
        ddp=NOT_TRIED,
    ),
    Habit(
        "`loss.backward(gradient=torch.tensor(2.0))`",
        """
loss = model(**batch(0))
loss.backward(gradient=torch.full_like(loss, 2.0))
optimizer.step()
""",
        in_stages="Call parallel.train_step(**batch)",
        instead="scale the gradients: `p.grad.mul_(2)`",
        remedy="""
train(model, batch(0))
for p in model.parameters():
    p.grad.mul_(2.0)
optimizer.step()
""",
    ),
    Habit(
        "`loss.item()`, `float(loss)`, `loss.detach().cpu()` for the log",
        """
result = []
for step in range(2):
    loss = train(model, batch(step))
    result += [loss.item(), float(loss), loss.detach().cpu()]
    optimizer.step()
    optimizer.zero_grad()
""",
    ),
    Habit(
        "losses kept in a list, summed at the end of the epoch",
        """
losses = []
for step in range(3):
    losses.append(train(model, batch(step)).detach())
    optimizer.step()
    optimizer.zero_grad()
result = torch.stack(losses).mean()
""",
    ),
    Habit(
        "a running sum `total += loss` that keeps every graph",
        """
total = 0
for step in range(3):
    loss = train(model, batch(step))
    total += loss
    optimizer.step()
    optimizer.zero_grad()
result = float(total)
""",
    ),
    Habit(
        "`torch.cuda.synchronize`-like waiting: the loss read right behind the forward",
        """
loss = model(**batch(0))
value = loss.item()
loss.backward()
optimizer.step()
result = value
""",
        in_stages="Call parallel.train_step(**batch)",
        instead=BY_STEP,
    ),
    Habit(
        "an update skipped where the loss is not finite",
        """
for step in range(3):
    optimizer.zero_grad()
    loss = train(model, batch(step))
    if torch.isfinite(loss) and step != 1:
        optimizer.step()
""",
    ),
    Habit(
        "a batch skipped with `continue` behind its backward",
        """
for step in range(3):
    train(model, batch(step))
    if step == 1:
        model.zero_grad()
        continue
    optimizer.step()
    optimizer.zero_grad()
""",
    ),
    Habit(
        "evaluation under `torch.no_grad()` between steps",
        STEP
        + """
model.eval()
with torch.no_grad():
    result = model(**batch(5))
model.train()
train(model, batch(1))
optimizer.step()
""",
    ),
    Habit(
        "evaluation under `torch.inference_mode()` between steps",
        STEP
        + """
model.eval()
with torch.inference_mode():
    result = float(model(**batch(5)))
model.train()
train(model, batch(1))
optimizer.step()
""",
    ),
    Habit(
        "`torch.set_grad_enabled(False)` and on again",
        STEP
        + """
torch.set_grad_enabled(False)
result = float(model(**batch(5)))
torch.set_grad_enabled(True)
train(model, batch(1))
optimizer.step()
""",
    ),
    Habit(
        "`@torch.no_grad()` on the evaluating function",
        STEP
        + """
@torch.no_grad()
def evaluate():
    return sum(float(model(**batch(step))) for step in (5, 6))

result = evaluate()
train(model, batch(1))
optimizer.step()
""",
    ),
    Habit(
        "evaluation that forgets `no_grad`",
        STEP
        + """
model.eval()
result = float(model(**batch(5)))
model.train()
train(model, batch(1))
optimizer.step()
""",
    ),
    Habit(
        "`torch.autocast` around the call",
        """
with torch.autocast("cpu", dtype=torch.bfloat16):
    loss = train(model, batch(0))
optimizer.step()
""",
        says="precision=torch.autocast",
        instead="`autopar.parallelize(..., precision=torch.autocast(device, dtype))`",
        ddp=NOT_TRIED,
    ),
    Habit(
        "`torch.autocast(..., enabled=False)` around the call",
        """
with torch.autocast("cpu", enabled=False):
    train(model, batch(0))
optimizer.step()
""",
    ),
    Habit(
        "`torch.autograd.detect_anomaly()` around the step",
        """
with torch.autograd.detect_anomaly(check_nan=False):
    train(model, batch(0))
optimizer.step()
""",
    ),
    Habit(
        "`torch.autograd.set_detect_anomaly(True)`, and off again",
        """
torch.autograd.set_detect_anomaly(True)
train(model, batch(0))
torch.autograd.set_detect_anomaly(False)
optimizer.step()
""",
    ),
    Habit(
        "`torch.profiler.profile` with `step()` in the loop",
        """
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
    for step in range(2):
        optimizer.zero_grad()
        train(model, batch(step))
        optimizer.step()
        profiler.step()
""",
    ),
    Habit(
        "`torch.autograd.graph.saved_tensors_hooks` that move what is saved",
        """
with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
    train(model, batch(0))
optimizer.step()
""",
    ),
    Habit(
        "`torch.autograd.graph.save_on_cpu()`",
        """
with torch.autograd.graph.save_on_cpu():
    train(model, batch(0))
optimizer.step()
""",
    ),
    Habit(
        "`torch.use_deterministic_algorithms(True)`",
        """
torch.use_deterministic_algorithms(True)
try:
    train(model, batch(0))
finally:
    torch.use_deterministic_algorithms(False)
optimizer.step()
""",
    ),
    Habit(
        "`torch.manual_seed` in the midst of training",
        """
for step in range(2):
    torch.manual_seed(step)
    train(model, batch(step))
    optimizer.step()
    optimizer.zero_grad()
""",
    ),
    Habit(
        "`torch.set_default_dtype` changed between steps",
        STEP
        + """
torch.set_default_dtype(torch.float64)
train(model, batch(1))
optimizer.step()
""",
    ),
    Habit(
        "a step in another thread",
        """
from threading import Thread

thread = Thread(target=lambda: train(model, batch(0)))
thread.start()
thread.join()
optimizer.step()
""",
        ddp=NOT_TRIED,
    ),
    Habit(
        "an error in forward that the loop catches",
        """
train(model, batch(0))
optimizer.step()
optimizer.zero_grad()
try:
    train(model, {"x": batch(1)["x"][:, :3], "y": batch(1)["y"]})
except Exception:
    result = "caught"
optimizer.zero_grad()
train(model, batch(2))
optimizer.step()
""",
        spoils=True,
        ddp=NOT_TRIED,
    ),
)
