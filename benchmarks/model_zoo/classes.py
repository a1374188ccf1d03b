"""Which classes of `transformers` are tried: those that train, by task, from its own tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

FIRST = (
    "CAUSAL_LM", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM", "IMAGE_CLASSIFICATION", "SEMANTIC_SEGMENTATION",
    "CTC", "AUDIO_CLASSIFICATION", "SPEECH_SEQ_2_SEQ", "MASKED_IMAGE_MODELING",
)  # fmt: skip
"""Of each model type the first of these."""
SECOND = (
    "SEQUENCE_CLASSIFICATION",
    "TOKEN_CLASSIFICATION",
    "QUESTION_ANSWERING",
    "MULTIPLE_CHOICE",
)
"""And the first of these."""


@dataclass(frozen=True)
class ModelClass:
    """A class of the library, for a task."""

    model_type: str
    task: str
    name: str


def model_classes(every: bool = False) -> Iterator[ModelClass]:
    """At most two classes of each model type, or all of these tasks."""
    from transformers.models.auto import modeling_auto

    seen: set[tuple[str, tuple[str, ...]]] = set()
    for group in (FIRST, SECOND):
        for task in group:
            table = getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES")
            for model_type, names in sorted(table.items()):
                name = names if isinstance(names, str) else names[0]
                if every or (model_type, group) not in seen:
                    seen.add((model_type, group))
                    yield ModelClass(model_type, task, name)
