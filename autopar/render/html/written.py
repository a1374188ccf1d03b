"""Finds the source files of a captured model, whose lines the emitted code quotes in comments."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from autopar.errors import InputError
from autopar.ir.graph import Graph
from autopar.utils.io import text_of

MOST = 4
"""Maximum number of files: the model of a library may use many."""


def written(graph: Graph) -> tuple[tuple[str, str], ...]:
    """Return (name, text) of each file, by descending number of operators.

    For a Hugging Face model these are the library's files.
    """
    origins = (node.origin for node in graph.nodes if not node.is_leaf)
    spoken = Counter(origin.file for origin in origins if origin.code)
    files = [Path(file) for file, _ in spoken.most_common() if Path(file).is_file()]
    return tuple(
        (file.name, text_of(file, "the model's source", InputError)) for file in files[:MOST]
    )
