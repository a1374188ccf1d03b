"""The user's files that a graph was traced from: those whose lines emitted code has in its comments."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from autopar.errors import InputError
from autopar.ir.graph import Graph
from autopar.utils.io import text_of

MOST = 4
"""Files: a library's model may pass through many."""


def written(graph: Graph) -> tuple[tuple[str, str], ...]:
    """Name and text of each file, that with the most operators first; of a Hugging Face model the
    library's."""
    origins = (node.origin for node in graph.nodes if not node.is_leaf)
    spoken = Counter(origin.file for origin in origins if origin.code)
    files = [Path(file) for file, _ in spoken.most_common() if Path(file).is_file()]
    return tuple(
        (file.name, text_of(file, "the model's source", InputError)) for file in files[:MOST]
    )
