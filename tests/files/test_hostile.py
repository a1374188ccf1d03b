"""Nothing that is read runs, and whatever is wrong with it becomes a message."""

from __future__ import annotations

import ast
import json
import os
import random
import sqlite3
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import autopar
from autopar import rules
from autopar.capture.saved import saved
from autopar.cli.models import load as load_model
from autopar.cli.stages import load_plan
from autopar.emit import emit
from autopar.errors import AutoparError
from autopar.ir.mesh import Mesh
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from autopar.request.constraint_file import from_file
from autopar.runtime import checkpoint
from cost_models import hardware
from cost_models.errors import CostModelError
from cost_models.measured import Database
from tests.files.hostile import CODE, MARKER, TEXTS, bytes_of, mutated, written
from tests.files.saving import Training

REFUSALS = AutoparError, CostModelError


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.up(self.norm(x)).relu()


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


BATCH = {"x": torch.zeros(4, 8)}


@pytest.fixture(autouse=True)
def nothing_runs() -> Iterator[None]:
    os.environ.pop(MARKER, None)
    yield
    assert MARKER not in os.environ, "what was read has run"


@pytest.fixture(scope="module")
def made() -> autopar.Compilation:
    return autopar.compile_model(Small(), 2, BATCH, hardware="cpu", preset="megatron")


@pytest.fixture(scope="module")
def staged() -> PipelinePlan:
    found = autopar.plan(Small(), 2, BATCH, hardware="cpu", pipeline=2)
    assert isinstance(found, PipelinePlan)
    return found


def only_classes(source: str) -> None:
    """Importing it defines classes, and does nothing else."""
    tree = ast.parse(source)
    for node in tree.body[1:]:
        assert isinstance(node, (ast.Import, ast.ImportFrom, ast.ClassDef)), ast.dump(node)
    assert isinstance(tree.body[0], ast.Expr) and isinstance(tree.body[0].value, ast.Constant)
    for text in TEXTS[:11]:
        assert not any(line.startswith(CODE) for line in source.splitlines()), text
    exec(compile(source, "emitted", "exec"), {"__name__": "emitted"})


@pytest.mark.parametrize("text", TEXTS)
def test_text_ends_no_comment_and_no_string(text: str, made: autopar.Compilation) -> None:
    plan, graph = made.plan, made.graph
    nodes = tuple(
        replace(node, origin=replace(node.origin, file=text, line=7, code=text))
        if not node.is_leaf
        else node
        for node in graph.nodes
    )
    graph = replace(graph, nodes=nodes)
    only_classes(emit(replace(plan, hardware=text), graph, rules.localize, saved(graph)))


NAMES = (
    "a b",
    'x"""',
    "x\n" + CODE,
    "S",
    "Module",
    "torch",
    "self",
    "class",
    "1st",
    "é",
    "../../x",
    "partial",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_class_of_any_name(name: str) -> None:
    kind = type(name, (Small,), {})
    found = autopar.compile_model(kind(), 2, BATCH, hardware="cpu", preset="ddp")
    assert found.graph.name.isidentifier()
    only_classes(found.source)


def attempts(count: int, try_one: Callable[[random.Random], None]) -> None:
    """Each is right or refused; anything else it raises is told with its number."""
    for number in range(count):
        try:
            try_one(random.Random(number))
        except REFUSALS as error:
            assert str(error).strip(), number
        except Exception as error:
            raise AssertionError(f"attempt {number}: {type(error).__name__}: {error}") from error


def counts(few: int, many: int) -> Any:
    return pytest.mark.parametrize(
        "count", [few, pytest.param(many, marks=[pytest.mark.slow, pytest.mark.timeout(3000)])]
    )


@counts(60, 800)
def test_plans(count: int, made: autopar.Compilation, tmp_path: Path) -> None:
    content = json.loads(made.plan.to_json())
    kept = saved(made.graph)

    def try_one(chance: random.Random) -> None:
        text = bytes_of(mutated(content, chance, chance.randint(1, 3)), chance)
        plan = load_plan(written(tmp_path / "plan.json", text))
        assert isinstance(plan, Plan)
        plan.check(made.graph)
        only_classes(emit(plan, made.graph, rules.localize, kept))

    attempts(count, try_one)


@counts(30, 300)
def test_plans_of_pipelines(count: int, staged: PipelinePlan, tmp_path: Path) -> None:
    content = json.loads(staged.to_json())

    def try_one(chance: random.Random) -> None:
        text = bytes_of(mutated(content, chance, chance.randint(1, 3)), chance)
        load_plan(written(tmp_path / "plan.json", text))

    attempts(count, try_one)


@pytest.mark.parametrize("variant", [f"x({CODE})", "class", "print", "ﬁle"])
def test_a_variant_is_a_name(made: autopar.Compilation, variant: str) -> None:
    content = json.loads(made.plan.to_json())
    for choice in content["choices"]:
        choice["sharding"]["variants"] = [variant]
    with pytest.raises(AutoparError, match="which is not a name"):
        Plan.from_json(json.dumps(content))


def toml(content: Any, prefix: str = "") -> str:
    """Tables as TOML, whatever they hold."""
    flat, tables = [], []
    for key, each in content.items():
        name = json.dumps(key)
        if isinstance(each, dict):
            tables.append(f"[{prefix}{name}]\n{toml(each, f'{prefix}{name}.')}")
        else:
            flat.append(
                f"{name} = {json.dumps(each)}".replace("NaN", "nan").replace("Infinity", "inf")
            )
    return "\n".join([*flat, *tables])


@counts(60, 400)
def test_profiles(count: int, tmp_path: Path, made: autopar.Compilation) -> None:
    content = tomllib.loads(hardware.text("h100"))

    def try_one(chance: random.Random) -> None:
        text = toml(mutated(content, chance, chance.randint(1, 2)) or {})
        path = written(tmp_path / "mine.toml", _damaged(text, chance))
        found = hardware.load(path)
        assert hardware.parse(hardware.to_text(found), "again") == found

    attempts(count, try_one)


def _damaged(text: str, chance: random.Random) -> bytes:
    how = chance.random()
    if how < 0.05:
        text = "a = " + "[" * 50_000
    elif how < 0.1:
        text = text.replace("= ", "= 1" + "0" * 5000, 1)
    elif how < 0.15:
        text = text[: chance.randrange(len(text) + 1)]
    elif how < 0.2:
        return b"\xff" + text.encode("utf-8", "surrogatepass")
    return text.encode("utf-8", "surrogatepass")


@counts(60, 300)
def test_constraint_files(count: int, tmp_path: Path) -> None:
    content = {
        "pin": {"stored:*.up.weight": "[S(0)]"}, "forbid": {"used:*.norm.weight": {"x": "R"}},
        "prefer": {"layers.*/*": {"x": "S(0)"}},
    }  # fmt: skip

    def try_one(chance: random.Random) -> None:
        text = toml(mutated(content, chance, chance.randint(1, 2)) or {})
        from_file(written(tmp_path / "c.toml", _damaged(text, chance)), Mesh.of(2))

    attempts(count, try_one)


CONFIG = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2, "n_head": 2, "n_embd": 8,
    "vocab_size": 16, "n_positions": 16, "n_ctx": 16,
}  # fmt: skip


@counts(30, 200)
@pytest.mark.filterwarnings("ignore")
def test_configurations(count: int, tmp_path: Path) -> None:
    def try_one(chance: random.Random) -> None:
        text = bytes_of(mutated(CONFIG, chance), chance)
        load_model(f"hf:{written(tmp_path / 'config.json', text)}", 2, 8)

    attempts(count, try_one)


ELSEWHERE: tuple[dict[str, Any], ...] = (
    {"auto_map": {"AutoModel": "x--y.Z"}},
    {"attn_implementation": "kernels-community/flash-attn"},
    {"_attn_implementation_internal": "a/b:c"},
    {"_attn_implementation": {"text_config": "a/b"}},
    {"attn_implementation": "flash_attention_2"},
    {"quantization_config": {"quant_method": "bitsandbytes"}},
    {"trust_remote_code": True},
    {"text_config": {"use_kernels": True}},
    {"sub": [{"experts_implementation": "a/b"}]},
    {"use_pretrained_backbone": True},
)


@pytest.mark.parametrize("more", ELSEWHERE, ids=lambda more: next(iter(more)))
def test_configurations_that_name_code_or_kernels(more: dict[str, Any], tmp_path: Path) -> None:
    path = written(tmp_path / "config.json", json.dumps(CONFIG | more).encode())
    with pytest.raises(AutoparError, match="may load code, kernels or weights from elsewhere"):
        load_model(f"hf:{path}", 2, 8)
    written(path, json.dumps(CONFIG | {"attn_implementation": "sdpa"}).encode())
    load_model(f"hf:{path}", 2, 8)


@counts(40, 300)
@pytest.mark.filterwarnings("ignore:.*without digests")
def test_checkpoints(count: int, tmp_path: Path) -> None:
    """Damaged where no digest tells: as an older autopar wrote them."""
    from torch.distributed.checkpoint import state_dict_saver
    from torch.distributed.checkpoint.filesystem import FileSystemWriter

    path = tmp_path / "c"
    training = Training()
    state = checkpoint._plain_state(training.model, training.optimizer, 1)
    with checkpoint._alone_is_fine():
        state_dict_saver.save(state, storage_writer=FileSystemWriter(path), no_dist=True)
    before = (path / ".metadata").read_bytes()

    def try_one(chance: random.Random) -> None:
        content = bytearray(before)
        for _ in range(chance.randint(1, 4)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        written(path / ".metadata", bytes(content[: None if chance.random() < 0.8 else -9]))
        checkpoint.load(path, training.model, training.optimizer)

    attempts(count, try_one)


READERS: dict[str, Callable[[Path], Any]] = {
    "plan": load_plan,
    "profile": hardware.load,
    "constraints": lambda path: from_file(path, Mesh.of(2)),
    "config": lambda path: load_model(f"hf:{path}", 2, 8),
    "database": lambda path: Database(path).settings(),
}


@pytest.mark.parametrize("name", READERS)
def test_what_is_no_file(name: str, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.toml"
    os.mkfifo(pipe)
    (tmp_path / "folder.toml").mkdir()
    written(tmp_path / "empty.toml", b"")
    written(tmp_path / "binary.toml", bytes(range(256)))
    (tmp_path / "loop.toml").symlink_to("loop.toml")
    (tmp_path / "zero.toml").symlink_to("/dev/zero")
    places = (
        pipe,
        *(tmp_path / f"{each}.toml" for each in ("folder", "empty", "binary", "loop", "zero")),
    )
    for path in (
        *places,
        tmp_path / "no.toml",
        Path("a\0b.toml"),
        Path("\udc80.toml"),
        Path("/proc/1/mem"),
    ):
        if name == "profile" and path.suffix != ".toml":
            continue
        with pytest.raises(REFUSALS):
            READERS[name](path)


def test_databases_run_nothing(tmp_path: Path) -> None:
    path = tmp_path / "times.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "create table timed (a); create view setting as select load_extension('x') as id;"
            "pragma application_id = 1098216528; pragma user_version = 2;"
        )
    with pytest.raises(CostModelError, match="not a profile database"):
        Database(path).settings()
