"""What is passed to the model, and when it changes."""

from __future__ import annotations

from tests.habits.registry.habit import NOT_TRIED, Habit

LOOP = """
optimizer = sgd(model)
for step in range(2):
    optimizer.zero_grad()
    train(model, batch(step))
    optimizer.step()
"""
TRAIN = """
optimizer = sgd(model)
train(model, part(example))
optimizer.step()
"""
FED = """
class Both(Net):
    def forward(self, x, y):
        made = self.encode(x)
        return {"loss": nn.functional.mse_loss(self.head(made), y), "made": made}

model = prepare(Both().double(), batches=autopar.Batches(outputs=["made"]))
fed = batch(0)
for _ in range(2):
    found = model(**fed)
    found["loss"].backward()
    fed = {"x": found["made"].detach(), "y": fed["y"]}
"""

BATCHES: tuple[Habit, ...] = (
    Habit(
        "a last batch that is shorter",
        """
for step, samples in enumerate((8, 8, 4)):
    optimizer.zero_grad()
    train(model, batch(step, samples))
    optimizer.step()
""",
    ),
    Habit(
        "a last batch that nothing divides",
        """
for step, samples in enumerate((8, 7)):
    optimizer.zero_grad()
    train(model, batch(step, samples))
    optimizer.step()
""",
        spoils=True,
        ddp=NOT_TRIED,
    ),
    Habit(
        "batches in turn of two sizes",
        """
for step, samples in enumerate((8, 4, 8, 4)):
    optimizer.zero_grad()
    train(model, batch(step, samples))
    optimizer.step()
""",
        spoils=True,
    ),
    Habit(
        "an output as an input of the next step",
        FED,
        says="is a DTensor",
        in_stages="outputs= is not available for pipelines",
        instead="`output.full_tensor()`",
        remedy=FED.replace(".detach()", ".detach().full_tensor()"),
        remedy_in_stages=False,
        ddp=NOT_TRIED,
    ),
    Habit(
        "positional arguments: `model(x, y)`",
        """
given = batch(0)
loss = model(given["x"], given["y"])
loss.backward()
optimizer.step()
""",
        in_stages="Pass a pipeline's batch as keyword arguments",
        instead="keyword arguments to `train_step`",
    ),
    Habit(
        "arguments in another order of keywords",
        """
given = batch(0)
train(model, {"y": given["y"], "x": given["x"]})
optimizer.step()
""",
    ),
    Habit(
        "an argument that the model does not know",
        """
try:
    train(model, batch(0) | {"unknown": torch.ones(8)})
except (TypeError, autopar.AutoparError) as error:
    result = "unknown" in str(error)
""",
        spoils=True,
    ),
    Habit(
        "an argument that is missing",
        """
try:
    train(model, {"x": batch(0)["x"]})
except (TypeError, autopar.AutoparError) as error:
    result = "y" in str(error)
""",
        spoils=True,
    ),
    Habit(
        "float32 samples for a float64 model",
        """
given = batch(0)
given["x"] = given["x"].float().double()
train(model, given)
optimizer.step()
""",
    ),
    Habit(
        "samples that are no contiguous memory",
        """
given = batch(0)
given["x"] = given["x"].t().contiguous().t()
train(model, given)
optimizer.step()
""",
    ),
    Habit(
        "samples changed in place behind the step",
        """
given = batch(0)
for step in range(2):
    optimizer.zero_grad()
    train(model, given)
    optimizer.step()
    given["x"].mul_(0.5)
""",
    ),
    Habit(
        "an optional argument: `mask=None`",
        """
class Masked(Net):
    def forward(self, x, y, mask=None):
        return super().forward(x if mask is None else x * mask, y)

model = prepare(Masked().double())
"""
        + LOOP,
    ),
    Habit(
        "`None` passed by name",
        """
class Masked(Net):
    def forward(self, x, y, mask=None):
        return super().forward(x if mask is None else x * mask, y)

example = tree(0) | {"mask": None}
model = prepare(Masked().double(), tree(0) | {"mask": None})
"""
        + TRAIN,
    ),
    Habit(
        "a mask that comes in some batches only",
        """
class Masked(Net):
    def forward(self, x, y, mask=None):
        return super().forward(x if mask is None else x * mask, y)

model = prepare(Masked().double())
optimizer = sgd(model)
for step in range(2):
    given = batch(step)
    if step == 1:
        given["mask"] = torch.ones_like(given["x"]) * 0.5
    optimizer.zero_grad()
    train(model, given)
    optimizer.step()
""",
    ),
    Habit(
        "a Python number: `model(x, y, weight=0.5)`",
        """
class Weighted(Net):
    def forward(self, x, y, weight):
        return weight * super().forward(x, y)

model = prepare(Weighted().double(), tree(0) | {"weight": 0.5})
optimizer = sgd(model)
for weight in (0.5, 0.25):
    optimizer.zero_grad()
    train(model, batch(0) | {"weight": weight})
    optimizer.step()
""",
    ),
    Habit(
        "a flag: `model(x, y, use_cache=False)`",
        """
class Flagged(Net):
    def forward(self, x, y, use_cache):
        return super().forward(x, y) * (2 if use_cache else 1)

model = prepare(Flagged().double(), tree(0) | {"use_cache": False})
optimizer = sgd(model)
for flag in (False, True):
    optimizer.zero_grad()
    train(model, batch(0) | {"use_cache": flag})
    optimizer.step()
""",
    ),
    Habit(
        "a dict in the batch: `model(inputs={...})`",
        """
class Nested(Net):
    def forward(self, inputs):
        return super().forward(inputs["x"], inputs["y"])

model = prepare(Nested().double(), {"inputs": tree(0)})
optimizer = sgd(model)
train(model, {"inputs": batch(0)})
optimizer.step()
""",
    ),
    Habit(
        "a tuple in the batch",
        """
class Nested(Net):
    def forward(self, pair):
        return super().forward(*pair)

model = prepare(Nested().double(), {"pair": tuple(tree(0).values())})
optimizer = sgd(model)
train(model, {"pair": tuple(batch(0).values())})
optimizer.step()
""",
    ),
    Habit(
        "a list of tensors",
        """
class Nested(Net):
    def forward(self, tensors):
        return super().forward(tensors[0], tensors[1])

model = prepare(Nested().double(), {"tensors": list(tree(0).values())})
optimizer = sgd(model)
train(model, {"tensors": list(batch(0).values())})
optimizer.step()
""",
    ),
    Habit(
        "an object of one's own that holds tensors",
        """
class Data:
    def __init__(self, x, y):
        self.x, self.y = x, y

class Takes(Net):
    def forward(self, data):
        return super().forward(data.x, data.y)

model = prepare(Takes().double(), {"data": Data(**tree(0))})
""",
        says="Data",
        instead="a dataclass, a dict, or the tensors",
        remedy="""
from dataclasses import dataclass

@dataclass
class Data:
    x: torch.Tensor
    y: torch.Tensor

class Takes(Net):
    def forward(self, data):
        return super().forward(data.x, data.y)

model = prepare(Takes().double(), {"data": Data(**tree(0))})
""",
        ddp=NOT_TRIED,
    ),
    Habit(
        "a 0-dim tensor that varies: `model(x, y, rate=torch.tensor(...))`",
        """
class Rated(Net):
    def forward(self, x, y, rate):
        return rate * super().forward(x, y)

model = prepare(Rated().double(), tree(0) | {"rate": torch.tensor(0.5).double()})
optimizer = sgd(model)
for rate in (0.5, 0.25):
    optimizer.zero_grad()
    train(model, batch(0) | {"rate": torch.tensor(rate).double()})
    optimizer.step()
""",
    ),
    Habit(
        "the loss outside: `criterion(model(x), y)`",
        """
model = prepare(Unlossy().double(), {"x": tree(0)["x"]})
loss = nn.functional.mse_loss(model(x=batch(0)["x"]), batch(0)["y"])
loss.backward()
""",
        says="loss=",
        instead="`autopar.parallelize(..., loss=lambda output, y: criterion(output, y))`",
        remedy="""
loss = lambda output, y: nn.functional.mse_loss(output, y)
model = prepare(Unlossy().double(), tree(0), loss=loss)
train(model, batch(0))
""",
    ),
    Habit(
        "an evaluation of another size than the batches of training",
        """
train(model, batch(0))
optimizer.step()
model.eval()
with torch.no_grad():
    result = float(model(**batch(3, 16)))
model.train()
train(model, batch(1))
optimizer.step()
""",
        spoils=True,
    ),
    Habit(
        "a batch of one sample in an evaluation",
        """
with torch.no_grad():
    result = float(model(**batch(3, 1)))
train(model, batch(1))
optimizer.step()
""",
        spoils=True,
        ddp=NOT_TRIED,
    ),
    Habit(
        "an empty batch",
        """
loss = train(model, batch(3, 0))
""",
        says="",
        in_stages="The batch is empty",
        instead="skip it: `drop_last=True`, or `if len(x)`",
        ddp=NOT_TRIED,
        spoils=True,
    ),
    Habit(
        "another batch on every rank: samples drawn without a common seed",
        """
given = batch(0)
if ranks > 1:
    given["x"] = given["x"] + dist.get_rank()
train(model, given)
""",
        says="Ranks disagree about the batch",
        instead="seed what shuffles alike on all ranks, or `batches=autopar.Batches(local=True)`",
        ddp=NOT_TRIED,
        spoils=True,
    ),
)
