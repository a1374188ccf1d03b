"""Changes of plain attributes: which are part of a model's state, and in which order they are put on."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from autopar.errors import InputError
from autopar.runtime.attributes import Attributes


class Part(nn.Module):
    """With numbers in a list and a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = [1.0, 1.0]
        self.table: dict[str, Any] = {"scale": 1.0}
        self.config = SimpleNamespace(scale=1.0, inner={"shift": [0.0]})


def made() -> tuple[Any, Any, Attributes]:
    """A tree as `holders` makes it, a copy of it, and the attributes."""
    tree = nn.ModuleList([Part(), Part()])
    bare = copy.deepcopy(tree)
    for module in tree.modules():
        vars(module)["forward"] = None
    return tree, bare, Attributes(tree)


def test_a_number_that_changes_is_put_on() -> None:
    tree, bare, attributes = made()
    tree[1].numbers[0] = 2.0
    tree[0].table["scale"] = 3.0
    with attributes.state(True).put_on(bare):
        assert bare[1].numbers == [2.0, 1.0] and bare[0].table == {"scale": 3.0}
    assert bare[1].numbers == [1.0, 1.0] and bare[0].table == {"scale": 1.0}


def test_numbers_in_objects_are_put_on() -> None:
    tree, bare, attributes = made()
    tree[1].config.scale, tree[1].config.inner["shift"][0] = 2.0, 3.0
    with attributes.state(True).put_on(bare):
        assert bare[1].config == SimpleNamespace(scale=2.0, inner={"shift": [3.0]})


def test_what_a_list_was_before_it_was_replaced_is_not_put_on() -> None:
    tree, bare, attributes = made()
    tree[1].numbers[0] = 2.0
    assert attributes.state(True) != attributes.state(False)
    tree[1].numbers = [3.0, 4.0]
    with attributes.state(True).put_on(bare):
        assert bare[1].numbers == [3.0, 4.0]


def test_a_container_that_was_replaced_at_one_of_two_places() -> None:
    tree, _, _ = made()
    tree[1].table = tree[0].table
    attributes = Attributes(tree)
    tree[1].table["scale"] = 2.0
    assert len(attributes.state(True).changes) == 1
    tree[0].table = {"scale": 1.0}
    with pytest.raises(InputError, match=r"^0\.table was replaced .* changed as 1\.table"):
        attributes.state(True)
    tree[1].table = {"scale": 1.0}
    assert attributes.state(True).changes == ()


def test_tensors_are_left_to_the_compiler() -> None:
    tree, _, attributes = made()
    tree[0].table["tensor"] = torch.ones(1)
    tree[1].numbers = [torch.ones(1)]
    tree[1].extra = torch.ones(1)
    assert attributes.state(True).changes == ()


def test_the_compiler_is_told_which_containers_are_compared() -> None:
    """Of a list with a tensor in it no item is compared here."""
    tree, _, _ = made()
    tree[0].numbers.append(torch.ones(1))
    attributes, told = Attributes(tree), []

    class Compiler:
        def follow(self, tree: nn.Module, model: nn.Module, compared: Any) -> None:
            told.append(compared)

    attributes.follow(Compiler(), tree)
    kept = {id(tree[0].table), id(tree[1].table), id(tree[1].numbers)}
    assert kept <= told[0] and id(tree[0].numbers) not in told[0]
