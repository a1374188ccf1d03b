"""Configurations of other tools: what is read, what is said, what is written, and what is refused."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from autopar.errors import InputError
from autopar.request import presets
from autopar.request.configurations import megatron_layout, torchtitan
from autopar.request.configurations.configuration import Configuration
from autopar.request.configurations.exchanged import Read, Written
from autopar.request.configurations.requested import requested
from autopar.request.configurations.shell import arguments
from autopar.request.configurations.tool import TOOLS, Tool, read_file
from autopar.request.layers import Layers

EXAMPLES = Path(__file__).parent / "configurations"
FUSED = "AdamW(fused=True)"
FLOAT8 = "priced in the precision of the other operators"
STATED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "megatron/gpt3_175b.sh": (
        {"tp": 8, "pp": 16, "microbatch": 1, "batch": 1536, "precision": "float16", "sequence": 2048,
         "devices": 8, "optimizer": FUSED},
        ["--rampup-batch-size is left out: the step is priced at the final batch"],
    ),
    "megatron/llama3_8b_fp8.sh": (
        {"microbatch": 1, "batch": 128, "zero": 1, "sequence_parallel": True, "optimizer": FUSED,
         "precision": "bfloat16", "sequence": 8192, "devices": 8},
        ["Branches of the script have --fp8-format", "--grad-reduce-in-bf16 is left out", FLOAT8],
    ),
    "megatron/mixtral_8x7b.sh": (
        {"ep": 2, "microbatch": 1, "batch": 4, "zero": 1, "sequence_parallel": True, "sequence": 256,
         "devices": 2, "optimizer": FUSED},
        [],
    ),
    "megatron/t5_220m.sh": (
        {"microbatch": 64, "batch": 512, "precision": "bfloat16", "devices": 8, "optimizer": FUSED},
        [],
    ),
    "megatron/figure_13.sh": (
        {"tp": 32, "pp": 2, "microbatch": 1, "batch": 32, "recompute": "full", "precision": "float16",
         "sequence": 2048, "optimizer": FUSED},
        [],
    ),
    "megatron/azure_1t.sh": (
        {"microbatch": 1, "batch": 8, "zero": 3, "recompute": "full", "precision": "float16",
         "optimizer": FUSED},
        ["--cpu-optimizer is left out: nothing is kept in the host's memory"],
    ),
    "torchtitan/llama3_8b.toml": (
        {"microbatch": 1, "accumulation": 1, "zero": 3, "recompute": "selective",
         "precision": "bfloat16", "sequence": 8192, "optimizer": FUSED},
        ["recomputes every second matrix product too"],
    ),
    "torchtitan/llama3_70b.toml": (
        {"tp": 8, "microbatch": 8, "accumulation": 1, "zero": 3, "sequence_parallel": True,
         "recompute": "full", "precision": "bfloat16", "sequence": 8192, "optimizer": FUSED},
        [],
    ),
    "torchtitan/llama3_405b.toml": (
        {"tp": 8, "microbatch": 2, "accumulation": 1, "zero": 3, "sequence_parallel": True,
         "recompute": "full", "precision": "bfloat16", "sequence": 8192, "optimizer": FUSED},
        [FLOAT8, "parallelism.enable_async_tensor_parallel is left out"],
    ),
    "torchtitan/llama4_17bx128e.toml": (
        {"tp": 8, "pp": 4, "microbatch": 1, "accumulation": 1, "schedule": "1f1b", "zero": 2,
         "sequence_parallel": True, "recompute": "full", "precision": "bfloat16", "sequence": 8192,
         "optimizer": FUSED},
        [],
    ),
    "torchtitan/deepseek_v3_671b.toml": (
        {"microbatch": 4, "accumulation": 1, "zero": 3, "recompute": "selective",
         "precision": "bfloat16", "sequence": 4096, "optimizer": FUSED},
        ["recomputes every second matrix product too"],
    ),
    "torchtitan/debug_model.toml": (
        {"microbatch": 8, "accumulation": 1, "zero": 3, "recompute": "selective",
         "precision": "bfloat16", "sequence": 2048, "optimizer": FUSED},
        ["selective_ac_option 2 recomputes one of 2 layers fully"],
    ),
    "accelerate/fsdp.yaml": ({"zero": 3, "precision": "bfloat16", "devices": 2}, []),
    "accelerate/slurm_fsdp.yaml": ({"zero": 3}, []),
    "accelerate/tp_hsdp.yaml": (
        {"tp": 2, "replicas": 2, "zero": 3, "precision": "bfloat16", "devices": 8}, [],
    ),
    "accelerate/cp.yaml": (
        {"cp": 8, "zero": 3, "recompute": "full", "precision": "bfloat16", "devices": 8}, [],
    ),
    "accelerate/fsdp2.yaml": ({"zero": 3, "devices": 2}, []),
    "accelerate/multi_node.yaml": ({"devices": 8}, []),
    "accelerate/megatron.yaml": ({"devices": 1}, []),
    "deepspeed/gpt2xl_zero2.json": (
        {"batch": 16, "accumulation": 1, "zero": 2, "precision": "float16", "optimizer": FUSED},
        ["activation_checkpointing.partition_activations is left out"],
    ),
    "deepspeed/pipeline.json": ({"batch": 256, "microbatch": 8, "optimizer": FUSED}, []),
    "deepspeed/template_zero3.json": ({"zero": 3}, []),
    "deepspeed/zero3.json": (
        {"batch": 16, "accumulation": 1, "zero": 3, "precision": "float16"},
        ["activation_checkpointing.partition_activations is left out"],
    ),
    "deepspeed/zero_infinity.json": (
        {"microbatch": 4, "accumulation": 1, "zero": 3, "precision": "float16"},
        ["offload_optimizer.device is left out", "offload_param.device is left out"],
    ),
    "deepspeed/fp16_z1.json": ({"zero": 1, "precision": "float16"}, []),
}  # fmt: skip
"""What each example states, and beginnings or parts of what is said of it."""


def stated(configuration: Configuration) -> dict[str, Any]:
    """The values that are not those of an empty configuration."""
    pairs = ((f.name, getattr(configuration, f.name)) for f in fields(configuration))
    return {name: value for name, value in pairs if value != getattr(Configuration(), name)}


@pytest.mark.parametrize("name", STATED)
def test_examples_of_the_tools_are_read(name: str) -> None:
    values, said = STATED[name]
    found = read_file(EXAMPLES / name)
    assert stated(found.configuration) == values
    assert len(found.said) == len(said)
    for sentence, part in zip(found.said, said, strict=True):
        assert part in sentence


def test_five_examples_of_each_tool() -> None:
    for tool in TOOLS:
        assert sum(name.startswith(tool) for name in STATED) >= 5


def test_what_a_branch_decides_is_asked_for() -> None:
    with pytest.raises(InputError, match=r"--tensor-model-parallel-size is 1 or 4, by a branch"):
        read_file(EXAMPLES / "megatron/mamba.sh")


def test_a_configuration_in_another_file_is_asked_for() -> None:
    with pytest.raises(InputError, match=r"in \.\./.*zero_stage1_config\.json: pass that file"):
        read_file(EXAMPLES / "accelerate/deepspeed.yaml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("--tensor-model-parallel-size 2 --new-parallel-size 4", "new-parallel-size = '4' is not"),
        ("--tp-comm-overlap", "--tp-comm-overlap is left out: communication of tensor"),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 2", "2 layers"),
        ("--recompute-granularity full --recompute-num-layers 4", "one by one"),
        ("--recompute-granularity selective --recompute-modules mlp", "modules mlp: the closest"),
        ("--optimizer muon", "The optimizer muon is left out"),
        ("--decoder-first-pipeline-num-layers 3", "they need --num-layers"),
    ],
)  # fmt: skip
def test_what_megatron_has_and_we_do_not_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "run.txt").write_text(text)
    (sentence,) = read_file(tmp_path / "run.txt").said
    assert said in sentence


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.toml", "[parallelism]\nnew_shard_degree = 4\n", "parallelism.new_shard_degree = 4 is not"),
        ("a.toml", "[training]\nenable_cpu_offload = true\n", "training.enable_cpu_offload is left out"),
        ("a.yaml", "fsdp_config: {fsdp_new_sharding: X}\n", "fsdp_new_sharding = 'X' is not"),
        ("a.yaml", "mixed_precision: fp8\n", "mixed_precision = 'fp8' is left out"),
        ("a.json", '{"zero_optimization": {"stage": 2, "new_key": 7}}', "zero_optimization.new_key = 7"),
        ("a.json", '{"pipeline": {"stages": 2, "partition": "best"}}', "pipeline.partition is left out"),
    ],
)  # fmt: skip
def test_keys_that_change_the_parallelism_are_named(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    (tmp_path / name).write_text(text)
    assert any(said in sentence for sentence in read_file(tmp_path / name).said)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.cfg", "", "no configuration that autopar reads, by its suffix '.cfg'. It reads megatron"),
        ("a.sh", "--micro-batch-size 'x", "cannot be read as a list of arguments"),
        ("a.sh", "--micro-batch-size x", "--micro-batch-size is 'x'; write a whole number"),
        ("a.sh", "--micro-batch-size ${MBS}", r"is \$\{MBS\}, which the file does not set"),
        ("a.sh", "--micro-batch-size --bf16", "--micro-batch-size is without a value"),
        ("a.sh", "--num-layers-per-virtual-pipeline-stage 3 --num-layers 8", "needs --num-layers that"),
        ("a.sh", "--use-megatron-fsdp --data-parallel-sharding-strategy all", "all is unknown"),
        ("a.sh", "--pipeline-model-parallel-layout Ex|L", "cannot be read; write it as in"),
        ("a.toml", "x = ", "is not a TOML file"),
        ("a.toml", "[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = 'X'",
         "pipeline_parallel_schedule 'X' is unknown"),
        ("a.toml", "[training]\nlocal_batch_size = 3\n[parallelism]\npipeline_parallel_degree = 2\n"
         "pipeline_parallel_microbatch_size = 2", "does not divide the local batch of 3"),
        ("a.yaml", "a: [", "is not a YAML file"),
        ("a.yaml", "3", "holds no accelerate configuration"),
        ("a.yaml", "distributed_type: TPU", "distributed_type is 'TPU'; autopar reads FSDP"),
        ("a.yaml", "fsdp_config: {fsdp_sharding_strategy: SOME}", "sharding_strategy is 'SOME'"),
        ("a.json", "[1]", "holds a list, not a DeepSpeed configuration"),
        ("a.json", "{", "is not a JSON file"),
        ("a.json", '{"zero_optimization": {"stage": "x"}}', "zero_optimization.stage is 'x'"),
        ("a.json", '{"zero_optimization": {"stage": 4}}', "ZeRO has the stages 0, 1, 2 and 3"),
    ],
)  # fmt: skip
def test_files_that_are_none(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=said):
        read_file(tmp_path / name)


def test_nothing_that_is_read_runs(tmp_path: Path) -> None:
    """Neither a command of a script, nor what it computes, nor an object of a YAML file."""
    mark = tmp_path / "mark"
    script = f"$(touch {mark})\nA=$((__import__('os').system('touch {mark}')))\n--seq-length $A"
    (tmp_path / "a.sh").write_text(script)
    with pytest.raises(InputError, match="--seq-length is"):
        read_file(tmp_path / "a.sh")
    (tmp_path / "a.yaml").write_text(f"x: !!python/object/apply:os.system ['touch {mark}']")
    with pytest.raises(InputError, match="is not a YAML file"):
        read_file(tmp_path / "a.yaml")
    assert not mark.exists()


def test_variables_of_a_script() -> None:
    text = 'A=3\nB=$((A * ${C:-4} / 2))\nD="$B"\n--x $B --y=${D} --z ${E} --w $F\nF=$G\nG=$F\n'
    found = {each.name: each.values for each in arguments(text, "a script")}
    assert found["x"] == found["y"] == ("6",)
    assert found["z"] == ("${E}",) and found["w"][0] in ("$F", "$G")


def test_layouts_of_megatron() -> None:
    assert megatron_layout.counts("Et*3|(tt|)*2,m|L", "a file") == (3, 2, 2, 0, 0)
    for stages in ((3, 2, 2, 0), (0, 4, 4, 3), (1, 1)):
        assert megatron_layout.counts(megatron_layout.text(stages), "a file") == stages


@pytest.mark.parametrize(
    ("given", "samples", "expected"),
    [
        ({"tp": 2, "devices": 8}, 16, {"dp": 4, "batch": 16, "microbatch": 4, "accumulation": 1}),
        ({"tp": 2, "dp": 4, "pp": 2}, 16, {"devices": 16, "microbatch": 1, "accumulation": 4}),
        ({"dp": 2, "microbatch": 2}, 16, {"accumulation": 4}),
        ({"dp": 2, "microbatch": 2, "accumulation": 3}, None, {"batch": 12}),
        ({"dp": 2, "accumulation": 4}, 16, {"microbatch": 2}),
        ({"dp": 1, "pp": 2, "virtual": 2}, 16, {"schedule": "interleaved"}),
        (
            {"dp": 1, "pp": 2, "layers": Layers((1, 2, 2, 1))}, 16,
            {"schedule": "interleaved", "virtual": 2},
        ),
        (
            {"dp": 2, "sequence_parallel": True, "replicas": 2}, 16,
            {"sequence_parallel": False, "replicas": 1},
        ),
    ],
)  # fmt: skip
def test_values_that_are_derived(
    given: dict[str, Any], samples: int | None, expected: dict[str, Any]
) -> None:
    found = Configuration(**given).settled(samples)
    assert {name: getattr(found, name) for name in expected} == expected
    assert found.settled(samples) == found


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "data-parallel ranks is not stated: pass dp= or devices="),
        ({"dp": 2, "devices": 6, "tp": 2}, "with dp 2 are 4 devices, not 6"),
        ({"devices": 6, "tp": 4}, "6 devices cannot be divided among tp 4"),
        ({"dp": 3}, "A batch of 16 samples cannot be divided among 3"),
        ({"dp": 2, "microbatch": 3}, "does not consist of microbatches of 3"),
        ({"dp": 2, "microbatch": 2, "accumulation": 3}, "in 3 microbatches does not consist"),
        ({"dp": 1, "pp": 2, "virtual": 2, "schedule": "1f1b"}, "1f1b has one stage on each rank"),
        ({"dp": 2, "ep": 4}, "ep=4 does not divide the 2 ranks"),
        ({"dp": 4, "zero": 3, "replicas": 3}, "replicas=3 does not divide the 4"),
    ],
)
def test_values_that_contradict_each_other(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Configuration(**given).settled(16)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tp": 0}, "tp=0: pass a whole number, at least 1"),
        ({"zero": 4}, "zero=4: ZeRO has the stages 0, 1, 2 and 3"),
        ({"recompute": "some"}, "recompute='some' is unknown: pass 'none', 'attention'"),
    ],
)
def test_values_that_are_none(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Configuration(**given)


def test_flags_take_precedence_over_a_file() -> None:
    file = Configuration(tp=2, pp=2, devices=16, microbatch=2, batch=32, accumulation=4)
    assert file.stating(tp=4).settled().dp == 2, "the devices stay"
    assert file.stating(devices=32).settled().dp == 8
    assert file.stating(dp=1).settled().devices == 4
    assert file.stating(microbatch=1).settled().accumulation == 8
    assert file.stating() == file


def test_requests() -> None:
    c = Configuration(tp=2, pp=3, dp=4, zero=1, sequence_parallel=True, microbatch=1).settled(8)
    found = requested(c)
    assert str(found.mesh) == "stage=3, data=4, tensor=2" and found.preset == "zero2_megatron_sp"
    assert found.pipeline.stages == [(4, 2)] * 3 and found.pipeline.microbatches == 2
    hybrid = requested(replace(c, pp=1, replicas=2, zero=3))
    assert str(hybrid.mesh) == "replica=2, data=2, tensor=2"
    assert hybrid.preset == "ddp+fsdp+megatron_sp" and hybrid.pipeline.stages == [(2, 2, 2)]
    alone = requested(Configuration(dp=1).settled(8))
    assert (str(alone.mesh), alone.preset, alone.pipeline.is_one_stage) == ("data=1", None, True)
    long = requested(replace(c, pp=1, cp=2))
    assert str(long.mesh) == "data=4, context=2, tensor=2"
    assert long.preset == "zero2+zero2_context_parallel+megatron_sp"
    assert "gather keys and values" in long.said[0]
    two = requested(Configuration(dp=2, cp=2).settled(8))
    assert (two.preset, two.recompute) == ("ddp_context_parallel", "gathers")
    experts = requested(replace(c, pp=1, ep=2))
    assert str(experts.mesh) == "data=2, expert=2, tensor=2"
    assert experts.preset == "zero2+zero2_experts+megatron_sp"
    constraints = presets.load(experts.preset, experts.mesh)
    assert {each.axis for each in constraints if "experts" in each.pattern} == {"expert"}
    nearest = requested(Configuration(dp=4, ep=2, zero=3).settled(8))
    assert (str(nearest.mesh), nearest.preset) == ("data=2, expert=2", "fsdp_experts")
    (said,) = requested(replace(c, zero=2)).said
    assert "ZeRO-2 reduces gradients in every microbatch" in said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ep": 2, "replicas": 2, "zero": 1}, r"replicas=2 and ep=2: each replica has 1 data"),
    ],
)
def test_what_does_not_run_is_refused_with_the_closest(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        requested(Configuration(dp=2, **given).settled(8))


ROUND = [
    Configuration(tp=2, pp=2, dp=4, zero=1, microbatch=1, batch=16, sequence_parallel=True),
    Configuration(tp=2, pp=2, dp=2, zero=1, virtual=2, schedule="interleaved", microbatch=1, batch=16,
                  layers=Layers((1, 2, 2, 1)), recompute="full", precision="bfloat16",
                  sequence_parallel=True),
    Configuration(dp=8, zero=3, microbatch=2, batch=16, recompute="full", precision="bfloat16"),
    Configuration(dp=8, zero=3, replicas=2, tp=2, sequence_parallel=True, batch=16),
    Configuration(dp=8, batch=16),
]  # fmt: skip
EXPRESSED = {
    "megatron": (0, 1, 2, 4), "torchtitan": (1, 2, 3, 4), "accelerate": (0, 2, 3, 4),
    "deepspeed": (2, 4),
}  # fmt: skip
"""Which of `ROUND` each tool expresses wholly, but for values that its file does not have."""
ELSEWHERE = {
    "megatron": set[str](), "torchtitan": {"devices", "dp"},
    "accelerate": {"batch", "microbatch", "accumulation", "sequence_parallel", "virtual", "schedule"},
    "deepspeed": {"devices", "dp", "recompute"},
}  # fmt: skip
"""Values that a tool is told elsewhere: by its launcher, its program, or the model."""


@pytest.mark.parametrize(("tool", "place"), [(t, p) for t, ps in EXPRESSED.items() for p in ps])
def test_what_is_written_is_read(tmp_path: Path, tool: str, place: int) -> None:
    of = TOOLS[tool]
    settled = replace(ROUND[place].settled(), optimizer=FUSED, sequence=64)
    path = tmp_path / f"written{of.suffixes[-1]}"
    path.write_text(of.write(settled, 8).text)
    found = read_file(path).configuration.stating(devices=settled.devices)
    back = replace(found.settled(16), optimizer=FUSED, sequence=64)
    kept = {f.name for f in fields(back)} - ELSEWHERE[tool] - {"precision", "zero"}
    assert {n: getattr(back, n) for n in kept} == {n: getattr(settled, n) for n in kept}
    if settled.precision:
        assert back.precision == settled.precision


def test_what_a_tool_cannot_express_is_said() -> None:
    c = replace(ROUND[1], schedule="zb-h1", recompute="selective", zero=3, replicas=2, virtual=1)
    settled = replace(c, layers=Layers(), optimizer="AdamW").settled()
    said = {name: " ".join(tool.write(settled, 8).said) for name, tool in TOOLS.items()}
    assert "Megatron-LM has no schedule zb-h1; it runs 1F1B" in said["megatron"]
    assert "Megatron-LM's FSDP has no stages" in said["megatron"]
    assert "torchtitan has no schedule zb-h1" in said["torchtitan"]
    assert "runs 1F1B with one stage on each rank" in said["accelerate"]
    assert "DeepSpeed's pipeline runs with ZeRO-1 at most" in said["deepspeed"]
    assert "here it is selective" in said["deepspeed"]
    assert all(
        "AdamW is one fused kernel there" in said[name] for name in ("megatron", "deepspeed")
    )


@pytest.mark.parametrize(("devices", "hosts"), [(8, 1), (9, 3), (12, 2), (13, 13), (32, 4)])
def test_hosts_have_equally_many_devices(tmp_path: Path, devices: int, hosts: int) -> None:
    settled = Configuration(dp=devices, zero=1, microbatch=1, optimizer=FUSED).settled()
    path = tmp_path / "written.sh"
    path.write_text(TOOLS["megatron"].write(settled, 8).text)
    assert f"--nnodes {hosts}\n" in path.read_text()
    assert read_file(path).configuration.devices == devices
    assert f"num_machines: {hosts}\n" in TOOLS["accelerate"].write(settled, 8).text


def test_a_tool_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TOOLS, "_known", dict(TOOLS))

    def read(text: str, source: str) -> Read:
        return Read(Configuration(tp=int(text)))

    def write(configuration: Configuration, host: int) -> Written:
        return Written(str(configuration.tp))

    TOOLS.add("mine", Tool((".mine",), read, write))
    (tmp_path / "a.mine").write_text("4")
    assert read_file(tmp_path / "a.mine").configuration.tp == 4
    assert TOOLS.named("mine").write(Configuration(tp=3), 8).text == "3"


@pytest.mark.parametrize(("dtype", "said"), [("bfloat16", True), ("float32", False)])
def test_torchtitans_dtype_of_reductions_is_said(dtype: str, said: bool) -> None:
    found = torchtitan.read(f'[training]\nmixed_precision_reduce = "{dtype}"\n', "run.toml")
    assert (
        any("mixed_precision_reduce = 'bfloat16' is left out" in each for each in found.said)
        == said
    )
