"""Models as they arrive: compiled, wrapped, in other dtypes, several of them."""

from __future__ import annotations

from tests.habits.registry.habit import NOT_TRIED, Habit

LOOP = """
optimizer = sgd(model)
for step in range(2):
    optimizer.zero_grad()
    train(model, batch(step))
    optimizer.step()
"""

ARRIVALS: tuple[Habit, ...] = (
    Habit(
        "a model compiled before: `torch.compile(net)`",
        "\nplain = Net().double()\nif ranks > 1:\n    plain = torch.compile(plain, backend='eager')"
        "\nmodel = prepare(plain)" + LOOP,
        ddp=NOT_TRIED,
    ),
    Habit(
        "a model in DDP already",
        """
wrapped = nn.parallel.DistributedDataParallel(Net().double()) if ranks > 1 else Net().double()
model = prepare(wrapped)
"""
        + LOOP,
        ddp=NOT_TRIED,
    ),
    Habit(
        "a model in `DataParallel`",
        """
model = prepare(nn.DataParallel(Net().double()) if ranks > 1 else Net().double())
"""
        + LOOP,
        ddp=NOT_TRIED,
    ),
    Habit(
        "`nn.SyncBatchNorm.convert_sync_batchnorm(net)`",
        """
plain = Normed()
if ranks > 1:
    plain = nn.SyncBatchNorm.convert_sync_batchnorm(plain)
model = prepare(plain.double())
"""
        + LOOP,
        ddp=NOT_TRIED,
    ),
    Habit(
        "a lazy module that has seen no batch",
        """
plain = Net().double()
plain.head = nn.LazyLinear(4).double()
model = prepare(plain)
""",
        says="has no shape yet",
        instead="run the plain model once on a batch",
        ddp=NOT_TRIED,
    ),
    Habit(
        "a teacher under `no_grad` in the model's forward",
        """
class Distils(nn.Module):
    def __init__(self):
        super().__init__()
        self.teacher, self.student = Unlossy(), Unlossy()
        self.teacher.requires_grad_(False)

    def forward(self, x, y):
        with torch.no_grad():
            wanted = self.teacher(x)
        return nn.functional.mse_loss(self.student(x), wanted) + 0 * y.mean()

model = prepare(Distils().double())
"""
        + LOOP,
    ),
    Habit(
        "two parallel models in one loop",
        """
other = prepare(Net().double())
model = prepare(Net().double())
optimizers = [sgd(other), sgd(model)]
for step in range(2):
    for trained, optimizer in zip((other, model), optimizers):
        optimizer.zero_grad()
        train(trained, batch(step))
        optimizer.step()
result = [float(v.sum()) for v in state(other).values()]
""",
    ),
    Habit(
        "a teacher beside the student: its output is the student's batch",
        """
teacher = prepare(Net().double())
with torch.no_grad():
    target = float(teacher(**batch(0)))
given = batch(0)
given["y"] = given["y"] * target
optimizer.zero_grad()
train(model, given)
optimizer.step()
""",
        ddp=NOT_TRIED,
    ),
    Habit(
        "a generator and a discriminator in turn: one steps on what the other made",
        """
made = prepare(Unlossy().double(), {"x": batch(0)["x"]}, loss=lambda output: output.mean())
with torch.no_grad():
    score = float(made(x=batch(0)["x"])) if ranks > 1 else float(made(x=batch(0)["x"]).mean())
given = batch(0)
given["y"] = given["y"] + score
train(model, given)
optimizer.step()
train(model, batch(1))
optimizer.step()
""",
        ddp=NOT_TRIED,
    ),
    Habit(
        "an `nn.Sequential` of layers and loss",
        """
class Loss(nn.Module):
    def forward(self, x):
        return x.square().mean()

model = prepare(nn.Sequential(Block(), Block(), Block(), Loss()).double(), {"input": tree(0)["x"]})
optimizer = sgd(model)
for step in range(2):
    train(model, {"input": batch(step)["x"]})
    optimizer.step()
    optimizer.zero_grad()
""",
    ),
    Habit(
        "a layer used twice in forward",
        """
class Twice(Net):
    def encode(self, x):
        return super().encode(super().encode(x))

model = prepare(Twice().double())
"""
        + LOOP,
    ),
    Habit(
        "a dict of outputs with the loss in it",
        """
class Returns(Net):
    def forward(self, x, y):
        logits = self.head(self.encode(x))
        return {"loss": nn.functional.mse_loss(logits, y), "logits": logits}

model = prepare(Returns().double())
optimizer = sgd(model)
found = model(**batch(0))
loss = found["loss"] if isinstance(found, dict) else found
loss.backward()
optimizer.step()
""",
        in_stages="Call parallel.train_step(**batch)",
        instead="`loss = model.train_step(**batch)`",
        remedy="""
class Returns(Net):
    def forward(self, x, y):
        logits = self.head(self.encode(x))
        return {"loss": nn.functional.mse_loss(logits, y), "logits": logits}

model = prepare(Returns().double())
optimizer = sgd(model)
train(model, batch(0))
optimizer.step()
""",
    ),
    Habit(
        "`ModuleDict` with names such as `en-de`",
        """
class Heads(Net):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleDict({"en-de": nn.Linear(8, 8), "class": nn.Linear(8, 8)})

    def encode(self, x):
        for head in self.heads.values():
            x = head(x)
        return super().encode(x)

model = prepare(Heads().double())
"""
        + LOOP,
    ),
    Habit(
        "`ParameterList` and `ParameterDict`",
        """
class Lists(Net):
    def __init__(self):
        super().__init__()
        self.shifts = nn.ParameterList(torch.zeros(8) for _ in range(2))
        self.scales = nn.ParameterDict({"a": torch.ones(8)})

    def encode(self, x):
        return super().encode(x * self.scales["a"] + self.shifts[0] - self.shifts[1])

model = prepare(Lists().double())
"""
        + LOOP,
    ),
    Habit(
        "a collective in forward: `dist.all_reduce`",
        """
class Talks(Net):
    def forward(self, x, y):
        loss = super().forward(x, y)
        if ranks > 1:
            dist.all_reduce(loss.detach())
        return loss

model = prepare(Talks().double())
""",
        says="communicates with other ranks itself",
        instead="write what one process computes",
        ddp=NOT_TRIED,
    ),
    Habit(
        "`random.random()` in forward",
        """
class Draws(Net):
    def forward(self, x, y):
        return super().forward(x * random.random(), y)

model = prepare(Draws().double())
""",
        says="random",
        instead="`torch.rand`, or an input",
        ddp=NOT_TRIED,
    ),
    Habit(
        "a tensor that is no buffer: `self.table = torch.randn(...)`, large",
        """
class Table(Net):
    def __init__(self):
        super().__init__()
        self.table = torch.ones(64, 64).double()

    def forward(self, x, y):
        return super().forward(x * self.table.mean(), y)

model = prepare(Table().double())
""",
        says="register_buffer",
        instead="`self.register_buffer('table', ..., persistent=False)`",
        remedy="""
class Table(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.ones(64, 64).double(), persistent=False)

    def forward(self, x, y):
        return super().forward(x * self.table.mean(), y)

model = prepare(Table().double())
""",
        ddp=NOT_TRIED,
    ),
    Habit(
        "an `autograd.Function` in forward",
        """
class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return -gradient

class Reverses(Net):
    def encode(self, x):
        return super().encode(Reverse.apply(self.layers[0](x)))

model = prepare(Reverses().double())
"""
        + LOOP,
    ),
)
