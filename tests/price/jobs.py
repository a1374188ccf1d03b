"""The tiny models, as jobs that configurations are priced for."""

from __future__ import annotations

from functools import cache
from typing import Any

from autopar.price import Job, Priced, job_of, price
from autopar.request.configurations.configuration import Configuration
from tests import models

FUSED = "AdamW(fused=True)"


@cache
def job(name: str = "llama", layers: int = 2, hardware: str = "h100") -> Job:
    """A model of some layers with its batch of eight."""
    model, inputs, loss = getattr(models, name)(layers)
    return job_of(model, inputs, hardware=hardware, loss=loss)


def configuration(**values: Any) -> Configuration:
    """A configuration with the optimizer that the tools have."""
    return Configuration(**{"optimizer": FUSED, "precision": "float32", **values})


@cache
def priced(name: str, layers: int, found: Configuration) -> Priced:
    """Configurations that tests have in common are priced once."""
    return price(job(name, layers), found)
