"""What the model holds besides parameters and buffers, and code that is replaced after `parallelize`."""

from __future__ import annotations

from tests.habits.registry.habit import Habit

HELD_MODEL = """
import argparse

class Settings:
    def __init__(self):
        self.scale = torch.ones(()).double()

class Held(Net):
    def __init__(self):
        super().__init__()
        self.factor = torch.ones(()).double()
        self.table = {"scale": torch.ones(()).double()}
        self.factors = [torch.ones(()).double()]
        self.settings = Settings()
        self.weights = numpy.ones(4)
        self.losses = []
        self.averages = {}

    def encode(self, x):
        x = super().encode(x) * self.factor * self.table["scale"] * self.settings.scale
        for factor in self.factors:
            x = x * factor
        return x * self.weights.mean() * options.scale

options = argparse.Namespace(scale=1.0)
model = prepare(Held().double())
own = getattr(model, "module", model) if type(model).__name__.startswith("Dist") else model
optimizer = sgd(model)
"""
STEPS = """
for step in range(2):
    optimizer.zero_grad()
    loss = train(model, batch(step))
    optimizer.step()
"""


def _changed(name: str, change: str) -> Habit:
    return Habit(name, HELD_MODEL + STEPS + change + STEPS)


HELD: tuple[Habit, ...] = (
    _changed(
        "a tensor that is no buffer, written to: `model.factor.fill_(2.0)`",
        "own.factor.fill_(2.0)",
    ),
    _changed(
        "a tensor that is no buffer, replaced: `model.factor = torch.tensor(2.0)`",
        "own.factor = torch.tensor(2.0).double()",
    ),
    _changed(
        "a tensor in a dict of the model, replaced: `model.table['scale'] = ...`",
        "own.table['scale'] = torch.tensor(2.0).double()",
    ),
    _changed(
        "a dict of the model, replaced: `model.table = {...}`",
        "own.table = {'scale': torch.tensor(2.0).double()}",
    ),
    _changed(
        "a tensor in a list of the model, written to; another one appended",
        """
own.factors[0].mul_(2.0)
own.factors.append(torch.tensor(3.0).double())
""",
    ),
    _changed(
        "a tensor in an object of the model: `model.settings.scale = ...`",
        "own.settings.scale = torch.tensor(2.0).double()",
    ),
    _changed("a NumPy array of the model, written to", "own.weights[1] = 3.0"),
    _changed("options of `argparse` that forward reads", "options.scale = 2.0"),
    Habit(
        "losses kept in a list of the model, averages of weights in a dict: forward reads neither",
        HELD_MODEL
        + """
for step in range(3):
    optimizer.zero_grad()
    loss = train(model, batch(step))
    optimizer.step()
    own.losses.append(loss.detach())
    for name, p in own.named_parameters():
        mean = own.averages.setdefault(name, whole(p).clone())
        mean.lerp_(whole(p), 0.1)
""",
    ),
    Habit(
        "`forward` of a class of the model replaced: `Block.forward = ...`",
        """
before = Block.forward
try:
    train(model, batch(0))
    Block.forward = lambda self, x: 2 * before(self, x)
    train(model, batch(1))
    Block.forward = lambda self, x: 3 * before(self, x)
    train(model, batch(2))
finally:
    Block.forward = before
train(model, batch(3))
optimizer.step()
""",
    ),
)
