"""The example at the end of each command's help."""

from __future__ import annotations

EXAMPLES = {
    "plan": "autopar plan train.py:make_model --mesh 2x4 --hardware h100 -o plan.json",
    "show": "autopar show plan.json",
    "emit": "autopar emit plan.json train.py:make_model -o out/",
    "explain": "autopar explain plan.json train.py:make_model up_proj.weight",
    "diff": "autopar diff plan.json other.json",
    "compare": "autopar compare train.py:make_model --mesh 2x4 --hardware h100 --plan mine.json",
    "simulate": "autopar simulate plan.json --bandwidth node=0.5x --trace out.json",
    "report": "autopar report plan.json -o report.html",
    "frontier": "autopar frontier train.py:make_model --mesh 2x4 --hardware h100",
    "fit": "autopar fit train.py:make_model --mesh 2x4 --hardware h100",
    "map": "autopar map train.py:make_model --mesh 2x4 --batches 8,64 --memories 8GiB,80GiB",
    "solve": "autopar solve problem.json --memory 40GiB",
    "stages": "autopar stages layers.json --seconds 60 -o stages.json",
    "verify": "autopar verify plan.json train.py:make_model",
    "hardware": "autopar hardware h100",
    "presets": "autopar presets",
    "price": "autopar price train.py:make_model --tp 8 --pp 4 --dp 2 --zero 1 --hardware h100",
    "export": "autopar export plan.json --to megatron -o run.sh",
    "rules": "autopar rules linear",
    "profile": "autopar profile train.py:make_model --mesh 2x4",
    "tune": "autopar tune train.py:make_model --mesh 2x2 -o plan.json",
    "calibrate": "autopar calibrate -o mine.toml",
}


def ending(command: str) -> str:
    """Return the command's example as Markdown."""
    return f"Example: `{EXAMPLES[command]}`"
