"""Saving and loading."""

from __future__ import annotations

from tests.habits.registry.habit import NOT_TRIED, Habit

STEP = """
optimizer.zero_grad()
train(model, batch(0))
optimizer.step()
"""
AGAIN = """
model = prepare(Net().double())
optimizer = sgd(model)
"""
NEXT = """
optimizer.zero_grad()
train(model, batch(1))
optimizer.step()
"""
FULL = "`torch.save(model.full_state_dict(), path)` on one rank, called by all"

STATES: tuple[Habit, ...] = (
    Habit(
        "`state_dict()` into `load_state_dict()` of the same module",
        STEP + "model.load_state_dict(copy.deepcopy(model.state_dict()))" + NEXT,
    ),
    Habit(
        "`load_state_dict` of a plain model's weights",
        """
torch.manual_seed(5)
model.load_state_dict(Net().double().state_dict())
"""
        + STEP,
        plain="""
torch.manual_seed(5)
model.load_state_dict(Net().double().state_dict())
"""
        + STEP,
        ddp="raises",
    ),
    Habit(
        "`torch.save(model.state_dict())`, `torch.load`, `load_state_dict`",
        STEP
        + """
file = io.BytesIO()
torch.save(model.state_dict(), file)
file.seek(0)
saved = torch.load(file, weights_only=False)
with torch.no_grad():
    for p in model.parameters():
        p.zero_()
model.load_state_dict(saved)
"""
        + NEXT,
    ),
    Habit(
        "whole weights for the plain model: `plain.load_state_dict(...)`",
        STEP
        + """
plain = Net().double()
plain.load_state_dict(state(model))
with torch.no_grad():
    result = float(plain(**batch(5)))
""",
    ),
    Habit(
        "`torch.save(model)`",
        """
torch.save(model, io.BytesIO())
""",
        says="cannot be copied or pickled",
        instead=FULL,
        ddp=NOT_TRIED,
        remedy="""
torch.save(model.full_state_dict(), io.BytesIO())
""",
    ),
    Habit(
        "`pickle.dumps(model)`, as `mp.spawn(args=(model,))` does",
        """
import pickle

pickle.dumps(model)
""",
        says="cannot be copied or pickled",
        instead="parallelize in each process",
        ddp=NOT_TRIED,
    ),
    Habit(
        "`if rank == 0: torch.save(full_state_dict())`, gathered by all",
        STEP
        + """
saved = state(model)
if ranks == 1 or dist.get_rank() == 0:
    torch.save(saved, io.BytesIO())
"""
        + NEXT,
    ),
    Habit(
        "model and optimizer saved and loaded into new ones",
        STEP
        + """
saved = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
"""
        + AGAIN
        + """
model.load_state_dict(saved[0])
optimizer.load_state_dict(saved[1])
"""
        + NEXT,
    ),
    Habit(
        "the optimizer's state saved with `torch.save`",
        STEP
        + """
file = io.BytesIO()
torch.save(optimizer.state_dict(), file)
file.seek(0)
optimizer = sgd(model)
optimizer.load_state_dict(torch.load(file, weights_only=False))
"""
        + NEXT,
    ),
    Habit(
        "`model.save(path, optimizer)` and `model.load`, as the checkpoint of autopar",
        STEP
        + """
import tempfile

folder = first(tempfile.mkdtemp())
model.save(folder + "/kept", optimizer, 1)
"""
        + AGAIN
        + """
result = model.load(folder + "/kept", optimizer)
"""
        + NEXT,
        plain=STEP
        + """
saved = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
"""
        + AGAIN
        + """
model.load_state_dict(saved[0])
optimizer.load_state_dict(saved[1])
result = 1
"""
        + NEXT,
        ddp=NOT_TRIED,
    ),
    Habit(
        "a checkpoint with fewer weights, `strict=True`",
        """
saved = dict(Net().double().state_dict())
saved.pop("head.bias")
try:
    model.load_state_dict(saved)
except Exception as error:
    result = "head.bias" in str(error)
torch.manual_seed(5)
own.load_state_dict(Net().double().state_dict())
""",
    ),
    Habit(
        "`strict=False`, and the names that are missing",
        """
torch.manual_seed(5)
saved = dict(Net().double().state_dict())
saved.pop("head.bias")
result = list(own.load_state_dict(saved, strict=False).missing_keys)
"""
        + STEP,
    ),
    Habit(
        "a checkpoint of another shape",
        """
saved = dict(Net().double().state_dict())
saved["head.bias"] = torch.zeros(5).double()
try:
    model.load_state_dict(saved)
except Exception as error:
    result = "head.bias" in str(error) or "size mismatch" in str(error)
torch.manual_seed(5)
own.load_state_dict(Net().double().state_dict())
""",
        ddp=NOT_TRIED,
    ),
    Habit(
        "`load_state_dict(assign=True)`",
        """
model.load_state_dict(Net().double().state_dict(), assign=True)
""",
        says="assign=True",
        instead="leave it out: values are copied",
        remedy="""
model.load_state_dict(Net().double().state_dict())
""",
        ddp=NOT_TRIED,
    ),
    Habit(
        "the prefix `module.` of DDP's checkpoints",
        """
torch.manual_seed(5)
saved = {"module." + name: value for name, value in Net().double().state_dict().items()}
own.load_state_dict(saved)
""",
        plain="""
torch.manual_seed(5)
model.load_state_dict(Net().double().state_dict())
""",
        says="does not fit the model",
        instead="take the prefix off: `{name.removeprefix('module.'): value ...}`",
        ddp="raises",
    ),
    Habit(
        "the best weights kept: `best = copy.deepcopy(model.state_dict())`, put back",
        STEP
        + """
best = copy.deepcopy(model.state_dict())
"""
        + NEXT
        + """
model.load_state_dict(best)
""",
    ),
    Habit(
        "`best = model.state_dict()` without a copy follows training",
        """
best = model.state_dict()
"""
        + STEP
        + """
model.load_state_dict(best)
""",
    ),
    Habit(
        "saving inside `torch.inference_mode()`",
        STEP
        + """
with torch.inference_mode():
    saved = copy.deepcopy(model.state_dict())
    result = sorted(state(model))
"""
        + NEXT,
    ),
    Habit(
        "random state saved and put back: `torch.get_rng_state()`",
        """
kept = torch.get_rng_state()
torch.rand(3)
torch.set_rng_state(kept)
result = float(torch.rand(()))
"""
        + STEP,
    ),
)
