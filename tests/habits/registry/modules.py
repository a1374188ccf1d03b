"""What is done to modules: modes, hooks, attributes, loops over the tree."""

from __future__ import annotations

from tests.habits.registry.habit import NOT_TRIED, Habit

STEP = """
optimizer.zero_grad()
train(model, batch(0))
optimizer.step()
"""
SEE = "name what you want to see with `Batches(outputs=...)`, or register it before `parallelize`"

MODULES: tuple[Habit, ...] = (
    Habit(
        "`model.train()` and `model.eval()` around each",
        """
for step in range(2):
    model.train()
    train(model, batch(step))
    optimizer.step()
    optimizer.zero_grad()
    model.eval()
result = [m.training for m in own.modules()]
""",
    ),
    Habit(
        "one submodule in eval: `model.layers[0].eval()`",
        """
model = prepare(Net(dropout=0.5).double())
own = getattr(model, "module", model) if type(model).__name__.startswith("Dist") else model
for layer in own.layers:
    layer.drop.eval()
optimizer = sgd(model)
"""
        + STEP,
    ),
    Habit(
        "batch norms in eval, in a loop with `isinstance`",
        """
model = prepare(Normed().double())
own = getattr(model, "module", model) if type(model).__name__.startswith("Dist") else model
for module in own.modules():
    if isinstance(module, nn.BatchNorm1d):
        module.eval()
optimizer = sgd(model)
"""
        + STEP,
    ),
    Habit(
        "batch norm in train: running statistics of the whole batch",
        """
model = prepare(Normed().double())
optimizer = sgd(model)
"""
        + STEP,
        ddp="differs",
    ),
    Habit(
        "a model that comes in eval, as `from_pretrained` gives it",
        """
model = prepare(Net(dropout=0.5).double().eval())
result = model.training
optimizer = sgd(model)
"""
        + STEP,
    ),
    Habit(
        "dropout's rate changed: `module.p = 0.0`",
        """
model = prepare(Net(dropout=0.5).double())
own = getattr(model, "module", model) if type(model).__name__.startswith("Dist") else model
for module in own.modules():
    if isinstance(module, nn.Dropout):
        module.p = 0.0
optimizer = sgd(model)
"""
        + STEP,
    ),
    Habit(
        "a number of the model changed: `model.scale = 2.0`",
        """
own.scale = 2.0
try:
    train(model, batch(0))
finally:
    own.scale = 1.0
optimizer.step()
""",
        spoils=True,
    ),
    Habit(
        "`isinstance(model, nn.Module)`; of its own class a parallel model is not",
        """
result = isinstance(getattr(own, "_root", own), nn.Module) and isinstance(own.layers[0], Block)
""",
    ),
    Habit(
        "`isinstance(model.layers[0], Block)`",
        """
result = [isinstance(layer, Block) for layer in own.layers]
""",
    ),
    Habit(
        "`named_modules()` and the classes",
        """
result = [(name, type(m).__name__) for name, m in own.named_modules()][1:]
""",
    ),
    Habit(
        "`get_submodule`, `get_parameter`",
        """
result = [
    type(own.get_submodule("layers.0.norm")).__name__,
    type(own.layers[1].get_submodule("up")).__name__,
]
""",
    ),
    Habit(
        "`len(model.layers)`, `model.layers[-1]`, slices of it",
        """
result = [len(own.layers), own.layers[-1] is own.layers[2], len(own.layers[1:])]
""",
    ),
    Habit(
        "`model.children()`, `model.named_children()`",
        """
result = [n for n, _ in own.named_children()] + [type(m).__name__ for m in own.children()]
""",
    ),
    Habit(
        "`hasattr(model, 'head')`, attributes of layers",
        """
result = [hasattr(own, "head"), hasattr(own, "tail"), own.head.in_features, own.head.out_features]
""",
    ),
    Habit(
        "`print(model.layers)`",
        """
result = repr(own.layers)
""",
    ),
    Habit(
        "`model.apply(function)` that only looks",
        """
found = []
own.apply(lambda module: found.append(type(module).__name__))
result = found[:-1]
""",
    ),
    Habit(
        "a submodule called: `model.layers[0](x)`",
        """
result = own.layers[0](batch(0)["x"])
""",
        says="cannot be called by itself",
        instead="`Batches(outputs=...)`, or `full_state_dict()` into the plain model",
        remedy="""
plain = Net().double()
plain.load_state_dict(model.full_state_dict())
result = plain.layers[0](batch(0)["x"])
""",
        ddp=NOT_TRIED,
    ),
    Habit(
        "a method called beside forward: `model.encode(x)`",
        """
result = own.encode(batch(0)["x"])
""",
        says="cannot be called by itself",
        instead="`full_state_dict()` into the plain model",
        remedy="""
plain = Net().double()
plain.load_state_dict(model.full_state_dict())
result = plain.encode(batch(0)["x"])
""",
        ddp=NOT_TRIED,
    ),
    Habit(
        "`register_forward_hook` on a submodule",
        """
own.head.register_forward_hook(lambda *_: None)
""",
        says="would never be called",
        instead=SEE,
        ddp=NOT_TRIED,
    ),
    Habit(
        "`register_forward_pre_hook` on a submodule",
        """
own.head.register_forward_pre_hook(lambda *_: None)
""",
        says="would never be called",
        instead=SEE,
        ddp=NOT_TRIED,
    ),
    Habit(
        "`register_full_backward_hook` on a submodule",
        """
own.head.register_full_backward_hook(lambda *_: None)
""",
        says="would never be called",
        instead="do what it does to `p.grad` behind the backward",
        ddp=NOT_TRIED,
    ),
    Habit(
        "`model.register_forward_hook` on the whole",
        """
seen = []
handle = model.register_forward_hook(lambda module, args, output: seen.append(float(output)))
with torch.no_grad():
    model(**batch(0))
handle.remove()
result = seen
""",
    ),
    Habit(
        "a hook that computes, registered before",
        """
plain = Net().double()
plain.head.register_forward_hook(lambda module, args, output: 2 * output)
model = prepare(plain)
optimizer = sgd(model)
"""
        + STEP,
    ),
    Habit(
        "a hook that only looks, registered before",
        """
plain = Net().double()
plain.head.register_forward_hook(lambda module, args, output: None)
model = prepare(plain)
""",
        says="returns nothing",
        instead="remove it, and name what you want to see with `Batches(outputs=...)`",
        ddp=NOT_TRIED,
    ),
    Habit(
        "`model.module.head`, as of DDP",
        """
result = model.module.head.in_features
""",
        says="has no .module",
        instead="`model.head`: no wrapper is around it",
        remedy="""
result = model.head.in_features
""",
        plain="""
result = model.head.in_features
""",
    ),
    Habit(
        "`getattr(model, 'module', model)`, as libraries unwrap",
        """
result = getattr(model, "module", model).head.in_features
""",
    ),
    Habit(
        "`torch.compile(model)`",
        """
trained = torch.compile(model, backend="eager")
trained(**batch(0)).backward()
optimizer.step()
""",
        heavy=True,
        spoils=True,
        ddp=NOT_TRIED,
    ),
    Habit(
        "`model.compile()` in place",
        """
model.compile(backend="eager")
train(model, batch(0))
optimizer.step()
""",
        heavy=True,
        spoils=True,
        ddp=NOT_TRIED,
    ),
    Habit(
        "`copy.deepcopy(model.layers[0])`",
        """
copy.deepcopy(own.layers[0])
""",
        says="cannot be copied or pickled",
        instead="copy of the plain model",
        ddp=NOT_TRIED,
    ),
    Habit(
        "`model.requires_grad_(True)` where it is already",
        """
model.requires_grad_(True)
"""
        + STEP,
    ),
    Habit(
        "`model.gradient_checkpointing_enable`-like: `torch.utils.checkpoint` in forward",
        """
class Checkpointed(Net):
    def encode(self, x):
        for layer in self.layers:
            x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
        return x

model = prepare(Checkpointed().double())
optimizer = sgd(model)
"""
        + STEP,
    ),
    Habit(
        "a counter in forward: `self.calls += 1`",
        """
class Counts(Net):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x, y):
        self.calls += 1
        return super().forward(x, y) / self.calls

model = prepare(Counts().double())
""",
        says="calls",
        instead="a buffer: `self.register_buffer('calls', torch.zeros(()))`",
        ddp=NOT_TRIED,
    ),
    Habit(
        "a branch on a value: `if x.sum() > 0`",
        """
class Branches(Net):
    def forward(self, x, y):
        return super().forward(x if x.sum() > 0 else -x, y)

model = prepare(Branches().double())
""",
        says="reads the value of a tensor",
        instead="`torch.where`",
        ddp=NOT_TRIED,
        remedy="""
class Branches(Net):
    def forward(self, x, y):
        return super().forward(torch.where(x.sum() > 0, x, -x), y)

model = prepare(Branches().double())
""",
    ),
)
