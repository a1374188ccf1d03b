"""Tensors of a model that lie in each other's memory: found before anything is planned."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from autopar.errors import InputError
from autopar.request.meta import without_weights
from autopar.request.storages import refuse_shared_memory


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.register_buffer("one", torch.zeros(4))
        self.register_buffer("two", torch.zeros(4))


def tied_by_data(model: Model) -> None:
    model.head.weight.data = model.emb.weight.data


def flat(model: Model) -> None:
    whole = torch.randn(24)
    model.whole = nn.Parameter(whole)
    model.emb.weight = nn.Parameter(whole.view(6, 4))


def parameter_of_a_view(model: Model) -> None:
    model.part = nn.Parameter(model.emb.weight.detach()[2:])


def turned(model: Model) -> None:
    model.turned = nn.Parameter(model.emb.weight.detach().t())


def buffers(model: Model) -> None:
    model.two = model.one


def buffers_of_views(model: Model) -> None:
    model.two = model.one.view(4)


def buffer_of_a_parameter(model: Model) -> None:
    model.register_buffer("first", model.emb.weight.detach()[0])


def attribute(model: Model) -> None:
    model.seen = model.emb.weight.detach()


def columns(model: Model) -> None:
    model.left = nn.Parameter(model.emb.weight.detach()[:, :3])
    model.emb.weight = nn.Parameter(torch.randn(6, 4))
    model.right = nn.Parameter(model.left.detach()[:, 2:])


@pytest.mark.parametrize(
    "share",
    [
        tied_by_data, flat, parameter_of_a_view, turned, buffers_of_views, buffer_of_a_parameter,
        attribute, columns,
    ],
)  # fmt: skip
def test_refused(share: Callable[[Model], None]) -> None:
    model = Model()
    share(model)
    with pytest.raises(InputError, match="share memory"):
        without_weights(model)


def test_the_remedy_of_a_tie_works() -> None:
    model = Model()
    tied_by_data(model)
    with pytest.raises(InputError, match=r"model.head.weight = model.emb.weight"):
        without_weights(model)
    model.head.weight = model.emb.weight
    refuse_shared_memory(model)
    model.head.weight = torch.nn.Parameter(model.head.weight.detach().clone())
    refuse_shared_memory(model)


def test_what_shares_a_storage_but_no_element_passes() -> None:
    model = Model()
    whole = torch.randn(48)
    model.emb.weight = nn.Parameter(whole[:24].view(6, 4))
    model.head.weight = nn.Parameter(whole[24:].view(6, 4))
    wide = torch.randn(6, 8)
    model.left, model.right = nn.Parameter(wide[:, :4]), nn.Parameter(wide[:, 4:])
    buffers(model)  # one tensor under two names
    refuse_shared_memory(model)
    refuse_shared_memory(nn.LSTM(4, 4, 2))
    with torch.device("meta"):
        refuse_shared_memory(Model())
