"""What is done to parameters and buffers."""

from __future__ import annotations

from tests.habits.registry.habit import NOT_TRIED, Habit

STEP = """
optimizer.zero_grad()
train(model, batch(0))
optimizer.step()
"""
PARAMETRIZED = """
class Exp(nn.Module):
    def forward(self, x):
        return x.exp()

    def right_inverse(self, x):
        return x.log()

plain = Net().double()
with torch.no_grad():
    plain.head.weight.abs_().add_(0.1)
nn.utils.parametrize.register_parametrization(plain.head, "weight", Exp())
value = torch.full_like(plain.head.weight, 0.3)
model = prepare(plain)
with torch.no_grad():
    {}
train(model, batch(0))
"""
FREEZE = "freeze before `parallelize`; later, parallelize again with `full_state_dict()` loaded"

WEIGHTS: tuple[Habit, ...] = (
    Habit(
        "a layer frozen before the model is made parallel",
        """
plain = Net().double()
plain.layers[0].requires_grad_(False)
model = prepare(plain)
optimizer = sgd(model)
"""
        + STEP,
    ),
    Habit(
        "a layer frozen in the midst of training",
        STEP
        + """
own.layers[0].requires_grad_(False)
try:
    train(model, batch(1))
    optimizer.step()
finally:
    own.requires_grad_(True)
""",
        says="parallelize it again",
        instead=FREEZE,
        skip=("stages",),
        spoils=True,
        ddp=NOT_TRIED,
    ),
    Habit(
        "gradual unfreezing: a frozen layer trained later",
        """
plain = Net().double()
plain.layers[0].requires_grad_(False)
model = prepare(plain)
optimizer = sgd(model)
"""
        + STEP
        + """
for p in model.parameters():
    p.requires_grad_(True)
train(model, batch(1))
optimizer.step()
""",
        says="parallelize it again",
        instead=FREEZE,
        remedy="""
plain = Net().double()
plain.layers[0].requires_grad_(False)
model = prepare(plain)
optimizer = sgd(model)
"""
        + STEP
        + """
plain.load_state_dict(model.full_state_dict())
kept = optimizer.state_dict()
gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
plain.requires_grad_(True)
model = prepare(plain)
for p, gradient in zip(model.parameters(), gradients):
    p.grad = gradient
optimizer = sgd(model)
optimizer.load_state_dict(kept)
train(model, batch(1))
optimizer.step()
""",
        skip=("stages",),
        remedy_in_stages=False,
        ddp=NOT_TRIED,
    ),
    Habit(
        "an average of weights in a loop: `mean.lerp_(p, 0.1)`",
        """
means = [p.detach().clone() for p in model.parameters()]
for step in range(2):
    train(model, batch(step))
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for mean, p in zip(means, model.parameters()):
            mean.lerp_(p, 0.1)
with torch.no_grad():
    for mean, p in zip(means, model.parameters()):
        p.copy_(mean)
""",
    ),
    Habit(
        "an average with `torch._foreach_lerp_`",
        """
means = [p.detach().clone() for p in model.parameters()]
train(model, batch(0))
optimizer.step()
with torch.no_grad():
    torch._foreach_lerp_(means, list(model.parameters()), 0.1)
    torch._foreach_copy_(list(model.parameters()), means)
""",
    ),
    Habit(
        "`torch.optim.swa_utils.AveragedModel(model)`",
        """
average = torch.optim.swa_utils.AveragedModel(model)
train(model, batch(0))
optimizer.step()
average.update_parameters(model)
""",
        says="cannot be copied or pickled",
        instead="keep `[p.detach().clone() for p in model.parameters()]`, and move each by `lerp_`",
        ddp=NOT_TRIED,
    ),
    Habit(
        "`ema_model = copy.deepcopy(model)`",
        """
average = copy.deepcopy(model)
""",
        says="cannot be copied or pickled",
        instead="a second `parallelize` of the plain model, and `load_state_dict`",
        ddp=NOT_TRIED,
    ),
    Habit(
        "weights swapped for the average's in an evaluation, and back",
        """
means = [0.5 * p.detach() for p in model.parameters()]
kept = [p.detach().clone() for p in model.parameters()]
with torch.no_grad():
    for p, mean in zip(model.parameters(), means):
        p.copy_(mean)
    result = float(model(**batch(5)))
    for p, old in zip(model.parameters(), kept):
        p.copy_(old)
"""
        + STEP,
    ),
    Habit(
        "weights clamped in place behind each step",
        STEP
        + """
with torch.no_grad():
    for p in model.parameters():
        p.clamp_(-0.1, 0.1)
"""
        + STEP,
    ),
    Habit(
        "weights clamped through `p.data.clamp_`",
        STEP
        + """
for p in model.parameters():
    p.data.clamp_(-0.1, 0.1)
"""
        + STEP,
    ),
    Habit(
        "`p.data = p.data * 0.9`: other memory",
        """
kept = [p.data for p in model.parameters()]
for p in model.parameters():
    p.data = p.data * 0.9
try:
    train(model, batch(0))
    optimizer.step()
finally:
    if ranks > 1 or type(model) is not Net:
        for p, old in zip(model.parameters(), kept):
            p.data = old
""",
        says="data was assigned",
        instead="`p.data.mul_(0.9)`, or `p.mul_(0.9)` under `torch.no_grad()`",
        remedy="""
with torch.no_grad():
    for p in model.parameters():
        p.mul_(0.9)
train(model, batch(0))
optimizer.step()
""",
        spoils=True,
        ddp=NOT_TRIED,
    ),
    Habit(
        "`model.apply(init)` with `nn.init` functions behind `parallelize`",
        """
def init(module):
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)

torch.manual_seed(5)
model.apply(init)
"""
        + STEP,
        in_stages="of a pipeline",
        instead="draw in the plain model, and `load_state_dict` it",
        remedy="""
plain = Net().double()
plain.load_state_dict(model.full_state_dict())
torch.manual_seed(5)
for module in plain.modules():
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
model.load_state_dict(plain.state_dict())
"""
        + STEP,
        ddp=NOT_TRIED,
    ),
    Habit(
        "`nn.init.zeros_(model.head.weight)`",
        """
if isinstance(own.head.weight, torch.Tensor):
    nn.init.zeros_(own.head.weight)
"""
        + STEP,
    ),
    Habit(
        "noise on weights: `p.add_(torch.randn_like(p))`",
        """
torch.manual_seed(5)
with torch.no_grad():
    for p in model.parameters():
        p.add_(torch.randn_like(p), alpha=0.01)
"""
        + STEP,
        in_stages="of a pipeline",
        instead="draw for the plain model's shapes, and `load_state_dict`",
    ),
    Habit(
        "a row written: `weight[0].zero_()`",
        """
with torch.no_grad():
    for name, p in own.named_parameters():
        if name == "layers.0.down.weight":
            p[0].zero_()
"""
        + STEP,
        says="would change a copy",
        under=("fsdp", "megatron"),
        instead="`whole = p.full_tensor()`, write to it, then `p.copy_(whole)`",
        remedy="""
with torch.no_grad():
    for name, p in own.named_parameters():
        if name == "layers.0.down.weight":
            whole = p.full_tensor() if hasattr(p, "full_tensor") else p.clone()
            whole[0].zero_()
            p.copy_(whole)
"""
        + STEP,
        ddp="equal",
    ),
    Habit(
        "a weight masked by `weight.mul_(mask)`",
        """
with torch.no_grad():
    for name, p in own.named_parameters():
        if name == "layers.0.up.weight":
            p.mul_((p.abs() > 0.1).to(p.dtype))
"""
        + STEP,
    ),
    Habit(
        "`torch.nn.utils.parameters_to_vector` and back",
        """
vector = nn.utils.parameters_to_vector(model.parameters())
result = vector.numel()
nn.utils.vector_to_parameters(vector * 0.5, model.parameters())
"""
        + STEP,
        says="data was assigned",
        in_stages="data was assigned",
        instead="write into each: `p.copy_(values)` under `torch.no_grad()`",
        spoils=True,
    ),
    Habit(
        "parameters counted: `sum(p.numel() for p in model.parameters())`",
        """
result = sum(p.numel() for p in model.parameters())
""",
        skip=("stages",),
    ),
    Habit(
        "trained parameters counted, by `requires_grad`",
        """
result = sum(p.numel() for p in model.parameters() if p.requires_grad)
""",
        skip=("stages",),
    ),
    Habit(
        "names and shapes listed: `(n, tuple(p.shape))`",
        """
result = [(n, tuple(p.shape)) for n, p in own.named_parameters()]
""",
        skip=("stages",),
    ),
    Habit(
        "a ratio for the log: `(lr * p.grad).std() / p.std()`",
        """
train(model, batch(0))
result = [float(p.grad.std() / p.std()) for n, p in own.named_parameters() if n == "head.weight"]
""",
        skip=("stages",),
    ),
    Habit(
        "`float(p.norm())`, `p.mean().item()`, `p.max()` for the log",
        """
p = dict(own.named_parameters()).get("layers.0.up.weight")
if p is None:
    p = torch.zeros(1)
read = (p.norm(), p.mean(), p.abs().max(), p.min(), p.sum(), p.var(), (p != 0).sum())
result = [float(number) for number in read] if len(p) > 1 else None
""",
        skip=("stages",),
    ),
    Habit(
        "`if torch.isnan(p).any()`, `if (p > 0).all()`",
        """
result = []
for name, p in own.named_parameters():
    if name == "layers.0.up.weight":
        q = torch.where(p == p.max(), torch.full_like(p, float("nan")), p)
        result = [bool(torch.isnan(each).any()) for each in (p, q)]
        result += [bool((each <= p.abs().mean()).all()) for each in (p, -p.abs())]
if not result:
    result = [False, True, False, True]
""",
        skip=("stages",),
    ),
    Habit(
        "`torch.equal(p, q)`",
        """
p = dict(own.named_parameters()).get("layers.0.up.weight", torch.rand(2))
q = p.detach().clone()
with torch.no_grad():
    q.mul_((p != p.max()).to(p.dtype))
result = [torch.equal(p, q), torch.equal(p, p)]
""",
        skip=("stages",),
    ),
    Habit(
        "`torch.allclose(p, q)`",
        """
result = [torch.allclose(p, p) for p in model.parameters()][0]
""",
    ),
    Habit(
        "`p.tolist()` of a small parameter",
        """
result = [p.tolist() for n, p in own.named_parameters()][0]
""",
        skip=("stages",),
    ),
    Habit(
        "`p.detach().cpu().numpy()`",
        """
result = [p.detach().cpu().numpy() for n, p in own.named_parameters()][0].tolist()
""",
        skip=("stages",),
    ),
    Habit(
        "`p[0, 0].item()`, `p[3].norm().item()`",
        """
p = dict(own.named_parameters()).get("layers.0.up.weight")
result = None if p is None else [p[0, 0].item(), p[13].norm().item(), p[:, 5].sum().item()]
""",
        skip=("stages",),
    ),
    Habit(
        "identity of parameters checked with `is`",
        """
held = dict(own.named_parameters())
result = all(own.get_parameter(name) is parameter for name, parameter in held.items())
""",
    ),
    Habit(
        "`data_ptr()` equal before and after a step",
        """
before = [p.data_ptr() for p in model.parameters()]
"""
        + STEP
        + """
result = before == [p.data_ptr() for p in model.parameters()]
""",
    ),
    Habit(
        "tied weights: `head.weight = embedding.weight` in the model",
        """
model = prepare(Tied().double(), tokens())
optimizer = sgd(model)
for step in range(2):
    train(model, part(tokens(step)))
    optimizer.step()
    optimizer.zero_grad()
""",
    ),
    Habit(
        "tied behind `parallelize`: `model.head.weight = model.embedding.weight`",
        """
plain = Tied()
plain.head.weight = nn.Parameter(plain.head.weight.clone())
model = prepare(plain.double(), tokens())
own = getattr(model, "module", model) if ranks > 1 and type(model).__name__ != "Tied" else model
own.head.weight = own.embedding.weight
""",
        says="cannot be set",
        instead="tie before `parallelize`",
        remedy="""
plain = Tied()
plain.head.weight = nn.Parameter(plain.head.weight.clone())
plain.head.weight = plain.embedding.weight
model = prepare(plain.double(), tokens())
""",
        ddp=NOT_TRIED,
    ),
    Habit(
        "a tie through `.data`: `head.weight.data = embedding.weight.data`",
        """
plain = Tied().double()
plain.head.weight = nn.Parameter(plain.head.weight.detach().clone())
plain.head.weight.data = plain.embedding.weight.data
model = prepare(plain, tokens())
""",
        says="memory",
        instead="`head.weight = embedding.weight`",
        ddp=NOT_TRIED,
    ),
    Habit(
        "`model.register_buffer` behind `parallelize`",
        """
model.register_buffer("seen", torch.zeros(1))
result = float(model.seen)
""",
        says="cannot be set",
        instead="register it before, or keep it beside the model",
        ddp=NOT_TRIED,
    ),
    Habit(
        "`model.register_parameter` behind `parallelize`",
        """
model.register_parameter("temperature", nn.Parameter(torch.ones(1)))
""",
        says="cannot be set",
        instead="register it before",
        ddp=NOT_TRIED,
    ),
    Habit(
        "a parameter replaced: `model.head.weight = nn.Parameter(...)`",
        """
own.head.weight = nn.Parameter(torch.zeros(4, 8).double())
"""
        + STEP,
        says="cannot be set",
        instead="write into it: `model.head.weight.copy_(...)` under `torch.no_grad()`",
        ddp=NOT_TRIED,
    ),
    Habit(
        "a head replaced: `model.head = nn.Linear(...)`",
        """
model.head = nn.Linear(8, 4).double()
""",
        says="cannot be set",
        instead="replace it in the plain model, and parallelize that",
        ddp=NOT_TRIED,
    ),
    Habit(
        "pruning behind `parallelize`: `prune.l1_unstructured`",
        """
from torch.nn.utils import prune

prune.l1_unstructured(own.layers[0].up, "weight", 0.5)
""",
        says="cannot be set",
        instead="prune the plain model, and parallelize that",
        ddp=NOT_TRIED,
    ),
    Habit(
        "`torch.nn.utils.parametrizations.weight_norm` behind `parallelize`",
        """
nn.utils.parametrizations.weight_norm(own.layers[0].up)
""",
        says="cannot be set",
        instead="do it to the plain model, and parallelize that",
        ddp=NOT_TRIED,
    ),
    Habit(
        "`weight_norm` in the model that is made parallel",
        """
plain = Net().double()
plain.head = nn.utils.parametrizations.weight_norm(plain.head)
model = prepare(plain)
optimizer = sgd(model)
"""
        + STEP,
    ),
    Habit(
        "`model.head.weight = value` where a parametrization computes the weight",
        PARAMETRIZED.format("model.head.weight = value"),
        says="is computed by a parametrization",
        instead="write into what it is computed of",
        remedy=PARAMETRIZED.format(
            "model.head.parametrizations.weight.original.copy_(value.log())"
        ),
        remedy_in_stages=False,
        ddp=NOT_TRIED,
    ),
    Habit(
        "`model.half()` or `model.to(torch.bfloat16)` behind `parallelize`",
        """
model.to(torch.bfloat16)
""",
        says="cannot become",
        instead="convert before, or `precision=`",
        ddp=NOT_TRIED,
        spoils=True,
    ),
    Habit(
        "`model.to(device)` where it is already",
        """
model = model.to("cpu")
"""
        + STEP,
    ),
    Habit(
        "`model.double()` of a model that is double",
        """
model = model.double()
"""
        + STEP,
    ),
    Habit(
        "`model.share_memory()`",
        """
model.share_memory()
""",
        says="cannot become",
        instead="processes of their own, by `torchrun`",
        ddp=NOT_TRIED,
    ),
    Habit(
        "the given model used on after `parallelize`",
        """
plain = Net().double()
model = prepare(copy.deepcopy(plain) if ranks == 1 else plain)
plain(**batch(0)).backward()
model.zero_grad()
with torch.no_grad():
    result = float(model(**batch(5)))
""",
        ddp=NOT_TRIED,
    ),
)
