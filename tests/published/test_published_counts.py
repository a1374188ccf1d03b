"""Published numbers of parameters and operations, from captured graphs."""

from __future__ import annotations

from typing import Any

import pytest
import transformers

from tests.daily import daily
from tests.published.models import at_depth, compiled, gpt, llama, parameters, small, work

NARAYANAN = [
    # layers, hidden, heads, parameters in 1e9, batch: Narayanan et al. 2021, table 1
    (24, 2304, 24, 1.7, 512),
    (30, 3072, 32, 3.6, 512),
    (36, 4096, 32, 7.5, 512),
    (40, 6144, 48, 18.4, 1024),
    (48, 8192, 64, 39.1, 1536),
    (60, 10240, 80, 76.1, 1792),
    (80, 12288, 96, 145.6, 2304),
    (96, 16384, 128, 310.1, 2160),
    (105, 20480, 128, 529.6, 2520),
    (128, 25600, 160, 1008.0, 3072),
]
S, V = 2048, 51200


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("layers", "h", "heads", "billions", "batch"), daily(NARAYANAN, NARAYANAN[::8])
)
def test_gpt_parameters(layers: int, h: int, heads: int, billions: float, batch: int) -> None:
    """P = 12 l h^2 (1 + 13 / 12 h + (V + s) / 12 l h), and the last norm, which it leaves out."""
    two, three = (parameters(small("eager", h, heads, n, 1).plan) for n in (2, 3))
    count = at_depth(two, three, layers)
    assert count == 12 * layers * h**2 + 13 * layers * h + (V + S) * h + 2 * h
    assert round(count / 1e9, 1) == pytest.approx(billions, abs=0.051)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("layers", "h", "heads", "billions", "batch"), daily(NARAYANAN, NARAYANAN[::8])
)
def test_gpt_operations(layers: int, h: int, heads: int, billions: float, batch: int) -> None:
    """F = 96 B s l h^2 (1 + s / 6 h + V / 16 l h): forward twice, backward once; products only."""
    made = [work(small("eager", h, heads, n, 1, recompute="full")) for n in (2, 3)]
    found = batch * at_depth(*(each.total for each in made), layers)
    paper = 96 * batch * S * layers * h**2 * (1 + S / (6 * h) + V / (16 * layers * h))
    assert paper < found < 1.005 * paper
    without = batch * at_depth(*(each.model for each in made), layers)
    forward = 24 * batch * S * layers * h**2 * (1 + S / (6 * h))
    assert found - without == pytest.approx(forward, rel=0.01), "the layers' forward, once more"


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "h", "heads", "billions", "batch"), NARAYANAN[::3])
def test_at_full_depth(layers: int, h: int, heads: int, billions: float, batch: int) -> None:
    """What is said of depth is so."""
    whole = compiled(gpt(layers, h, heads), 1, S, 1, precision="bfloat16", recompute="full")
    made = [small("eager", h, heads, n, 1, recompute="full") for n in (2, 3)]
    counts = (parameters(each.plan) for each in made)
    assert parameters(whole.plan) == at_depth(*counts, layers)
    assert work(whole).total == at_depth(*(work(each).total for each in made), layers)


LLAMAS: dict[str, tuple[int, dict[str, Any]]] = {
    # parameters as the model cards' weights have them
    "Llama-2 7B": (6_738_415_616, dict(num_hidden_layers=32)),
    "Llama-2 13B": (
        13_015_864_320,
        dict(hidden_size=5120, intermediate_size=13824, num_hidden_layers=40, num_attention_heads=40),
    ),
    "Llama-2 70B": (
        68_976_648_192,
        dict(hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64,
             num_key_value_heads=8),
    ),
    "Llama-3 8B": (
        8_030_261_248,
        dict(intermediate_size=14336, num_key_value_heads=8, vocab_size=128256, num_hidden_layers=32),
    ),
    "Llama-3 70B": (
        70_553_706_496,
        dict(hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64,
             num_key_value_heads=8, vocab_size=128256),
    ),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name", daily(LLAMAS, list(LLAMAS)[:2]))
def test_llama_parameters(name: str) -> None:
    count, config = LLAMAS[name]
    few = [
        parameters(compiled(llama(**{**config, "num_hidden_layers": n}), 1, 16, 1).plan)
        for n in (2, 3)
    ]
    assert at_depth(*few, config["num_hidden_layers"]) == count


@pytest.mark.slow
@pytest.mark.parametrize("name", daily(LLAMAS, list(LLAMAS)[:2]))
def test_llama_parameters_at_full_depth(name: str) -> None:
    count, config = LLAMAS[name]
    made = compiled(llama(**config), 1, 16, 1)
    assert parameters(made.plan) == count
    assert made.plan.estimate.parameter_nbytes == 4 * count, "and so are they priced"


def test_the_configurations_are_what_transformers_calls_llama() -> None:
    config = transformers.LlamaConfig()
    assert (config.hidden_size, config.intermediate_size, config.vocab_size) == (4096, 11008, 32000)
