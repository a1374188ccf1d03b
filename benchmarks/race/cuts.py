"""How a person cuts each model into stages: what it reads first, its blocks, and what makes the loss.

A stage is the model with the parts of the other stages taken out, and a forward of its own, since the
model's own forward runs all blocks.  What passes from stage to stage is a tuple of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from models import Batch
from torch import nn
from transformers.masking_utils import create_causal_mask

State = tuple[torch.Tensor, ...]
Beside = Mapping[str, torch.Tensor]
FIRST, LAST = (0, 0), (-1, -1)
"""Block of all blocks: list, and place in it."""


def next_token(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Each token's logits are of the next one."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def each_label(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """A label for each row of logits."""
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten())


@dataclass(frozen=True)
class Cut:
    """`reads` is the batch's tensor that the first stage gets.  `placed` says of each module that is in
    no block beside which one it stands: the place in a list of blocks, from its end where negative."""

    reads: str
    blocks: tuple[str, ...]
    placed: Mapping[str, tuple[int, int]]
    enter: Callable[[Any, torch.Tensor], State]
    run: Callable[[Any, int, State, Beside], State]
    leave: Callable[[Any, State], torch.Tensor]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    beside: Callable[[Any, Batch], Batch] = lambda model, batch: {}
    splits: bool = True
    """Whether torch can split its backward: of T5 it goes through the position biases' graph again."""


class Stage(nn.Module):
    """Stage `number` of `count`, with an equal share of the blocks."""

    def __init__(self, model: nn.Module, cut: Cut, number: int, count: int) -> None:
        super().__init__()
        self.model, self.cut, self.number = model, cut, number
        self.is_first, self.is_last = number == 0, number == count - 1
        self._known = {id(parameter): name for name, parameter in model.named_parameters()}
        lists = [model.get_submodule(path) for path in cut.blocks]
        homes = [(blocks, place) for blocks in lists for place in range(len(blocks))]
        self.places = range(len(homes) * number // count, len(homes) * (number + 1) // count)
        for at, (blocks, place) in enumerate(homes):
            if at not in self.places:
                blocks[place] = nn.Identity()
        firsts = [sum(map(len, lists[:number])) for number in range(len(lists))]
        for path, (blocks, place) in cut.placed.items():
            if firsts[blocks] + place % len(lists[blocks]) not in self.places:
                parent, _, name = path.rpartition(".")
                setattr(model.get_submodule(parent), name, nn.Identity())

    def names(self) -> dict[str, nn.Parameter]:
        """Its parameters under the model's names, tied ones under the first."""
        return {self._known[id(parameter)]: parameter for parameter in self.parameters()}

    def hold(self, name: str, parameter: nn.Parameter) -> None:
        """Put this one in the place of the parameter of that name."""
        old = self.names()[name]
        for module in self.modules():
            for key, held in module.named_parameters(recurse=False):
                if held is old:
                    setattr(module, key, parameter)
        self._known[id(parameter)] = name

    def forward(self, *given: torch.Tensor, **beside: torch.Tensor) -> Any:
        state: State = self.cut.enter(self.model, given[0]) if self.is_first else given
        for place in self.places:
            state = self.cut.run(self.model, place, state, beside)
        if self.is_last:
            return self.cut.leave(self.model, state)
        return state if len(state) > 1 else state[0]


def _gpt2_enter(model: Any, ids: torch.Tensor) -> State:
    places = torch.arange(ids.shape[1])
    return (model.transformer.wte(ids) + model.transformer.wpe(places),)


def _llama_run(model: Any, place: int, state: State, _: Beside) -> State:
    (hidden,) = state
    places = torch.arange(hidden.shape[1])[None]
    turned = model.model.rotary_emb(hidden, position_ids=places)
    return (model.model.layers[place](hidden, attention_mask=None, position_embeddings=turned),)


def _t5_run(model: Any, place: int, state: State, beside: Beside) -> State:
    """The encoder's state is (hidden, its position bias), then what it encoded; the decoder's is
    (hidden, what was encoded, its position bias)."""
    encoders = len(model.encoder.block)
    if place < encoders:
        hidden, *bias = state
        made = model.encoder.block[place](hidden, None, *bias)
        if place == encoders - 1:
            return (model.encoder.final_layer_norm(made[0]),)
        return made[0], made[1].contiguous()  # as gloo wants it
    if place == encoders:
        state = model.decoder.embed_tokens(beside["decoder_input_ids"]), *state
    hidden, encoded, *bias = state
    mask = create_causal_mask(
        config=model.decoder.config, inputs_embeds=hidden, attention_mask=None, past_key_values=None
    )
    block = model.decoder.block[place - encoders]
    hidden, bias_made, _ = block(hidden, mask, bias[0] if bias else None, encoded)
    return hidden, encoded, bias_made.contiguous()


def _t5_leave(model: Any, state: State) -> torch.Tensor:
    hidden = model.decoder.final_layer_norm(state[0])
    logits: torch.Tensor = model.lm_head(hidden * model.model_dim**-0.5)
    return logits


def _of_decoders(blocks: str, head: str) -> Cut:
    return Cut(
        "input_ids", (blocks,),
        {"model.embed_tokens": FIRST, "model.norm": LAST, head: LAST},
        lambda model, ids: (model.model.embed_tokens(ids),),
        _llama_run,
        lambda model, state: model.lm_head(model.model.norm(state[0])),
        next_token,
    )  # fmt: skip


CUTS: Mapping[str, Cut] = MappingProxyType(
    {
        "gpt2": Cut(
            "input_ids", ("transformer.h",),
            {
                "transformer.wte": FIRST, "transformer.wpe": FIRST,
                "transformer.ln_f": LAST, "lm_head": LAST,
            },
            _gpt2_enter,
            lambda model, place, state, _: (model.transformer.h[place](state[0]),),
            lambda model, state: model.lm_head(model.transformer.ln_f(state[0])),
            next_token,
        ),
        "llama": _of_decoders("model.layers", "lm_head"),
        "bert": Cut(
            "input_ids", ("bert.encoder.layer",), {"bert.embeddings": FIRST, "cls": LAST},
            lambda model, ids: (model.bert.embeddings(input_ids=ids),),
            lambda model, place, state, _: (model.bert.encoder.layer[place](state[0], None),),
            lambda model, state: model.cls(state[0]),
            each_label,
        ),
        "t5": Cut(
            "input_ids", ("encoder.block", "decoder.block"),
            {
                "shared": FIRST, "encoder.embed_tokens": FIRST,
                "encoder.final_layer_norm": (0, -1), "decoder.embed_tokens": (1, 0),
                "decoder.final_layer_norm": LAST, "lm_head": LAST,
            },
            lambda model, ids: (model.encoder.embed_tokens(ids),),
            _t5_run,
            _t5_leave,
            each_label,
            lambda model, batch: {"decoder_input_ids": model._shift_right(batch["labels"])},
            splits=False,
        ),
        "vit": Cut(
            "pixel_values", ("vit.layers",),
            {"vit.embeddings": FIRST, "vit.layernorm": LAST, "classifier": LAST},
            lambda model, pixels: (model.vit.embeddings(pixels),),
            lambda model, place, state, _: (model.vit.layers[place](state[0]),),
            lambda model, state: model.classifier(model.vit.layernorm(state[0])[:, 0]),
            each_label,
        ),
        "moe": _of_decoders("model.layers", "lm_head"),
    }
)  # fmt: skip
