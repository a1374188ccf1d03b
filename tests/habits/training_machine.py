"""Hypothesis draws training programs: a rule notes each action, and the program runs at the end.

What fails is made as short as can be; the machine prints its steps, and the error the program as code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.habits.training_model import FROZEN, LAYOUTS, MODELS, OPTIMIZERS, PARTS, Setting
from tests.habits.training_program import Action
from tests.habits.training_run import RESUME, Program

SEED, LAYER = st.integers(0, 5), st.integers(0, 2)
LAYOUT = st.sampled_from(list(LAYOUTS))
ALL = {name: [m for m in MODELS if Setting(name, m).can_have(name)] for name in LAYOUTS}
"""Every model of a layout, planned for each: a process plans half a minute until it has seen them."""
OPERATIONS = 80
"""So many operations on files has a save, and some less."""


class TrainingMachine(RuleBasedStateMachine):
    """Notes actions that are there in the layout at hand."""

    run: ClassVar[Callable[[Program], None]]
    """What a program is given to."""
    models: ClassVar[Mapping[str, Sequence[str]]]
    """What may be trained in each layout."""

    def __init__(self) -> None:
        super().__init__()
        self.setting, self.layout = Setting(), Setting().layout
        self.actions: list[Action] = []
        self.has_saved = False

    def note(self, *action: Any) -> None:
        """One more."""
        self.actions.append(action)

    def teardown(self) -> None:
        """Run them."""
        if self.actions:
            type(self).run(Program(self.setting, tuple(self.actions)))

    @property
    def is_whole(self) -> bool:
        """Whether the model is in one piece now."""
        return not LAYOUTS[self.layout].is_staged

    def may_be(self, setting: Setting, layout: str) -> bool:
        """Whether the setting's model is among those of that layout."""
        return setting.can_have(layout) and setting.model in self.models[layout]

    @initialize(
        layout=LAYOUT, model=st.sampled_from(MODELS), optimizer=st.sampled_from(OPTIMIZERS),
        fresh=st.booleans(),
    )  # fmt: skip
    def begin(self, layout: str, model: str, optimizer: str, fresh: bool) -> None:
        setting = Setting(layout, model, optimizer, fresh)
        if not self.may_be(setting, layout):
            setting = Setting(layout, self.models[layout][0], optimizer, fresh)
        self.setting, self.layout = setting, setting.layout

    @rule(seed=SEED)
    def step(self, seed: int) -> None:
        self.note("step", seed)

    @rule(seed=SEED)
    def another_step(self, seed: int) -> None:
        self.note("step", seed)

    @rule(seed=SEED, samples=st.sampled_from([4, 6]))
    def step_of(self, seed: int, samples: int) -> None:
        self.note("step_of", seed, samples)

    @rule(seed=SEED)
    def accumulate(self, seed: int) -> None:
        self.note("accumulate", seed)

    @rule(seed=SEED, parts=st.sampled_from([1, 2]))
    def in_parts(self, seed: int, parts: int) -> None:
        self.note("in_parts", seed, parts)

    @rule(seed=SEED, overflows=st.booleans())
    def scaled_step(self, seed: int, overflows: bool) -> None:
        self.note("scaled_step", seed, overflows and self.is_whole)

    @rule(seed=SEED)
    def backward_only(self, seed: int) -> None:
        self.note("backward_only", seed)

    @precondition(lambda self: self.is_whole)
    @rule(seed=SEED, apart=st.booleans())
    def two_forwards(self, seed: int, apart: bool) -> None:
        self.note("two_forwards", seed, apart)

    @rule()
    def update(self) -> None:
        self.note("update")

    @rule(to_none=st.booleans())
    def clear(self, to_none: bool) -> None:
        self.note("clear", to_none)

    # Freezing for good, and thawing later, comes here: `freeze(part)` and `thaw(part)`, each an action.
    @precondition(lambda self: self.is_whole)
    @rule(part=st.sampled_from(PARTS))
    def freeze_and_thaw(self, part: str) -> None:
        if self.setting.model != "frozen" or part not in FROZEN:
            self.note("freeze_and_thaw", part)

    @rule(part=st.sampled_from(["norm", "layers.0"]), train=st.booleans())
    def mode(self, part: str, train: bool) -> None:
        self.note("mode", part, train)

    @rule(train=st.booleans())
    def mode_of_all(self, train: bool) -> None:
        self.note("mode_of_all", train)

    @rule(p=st.sampled_from([0.0, 1.0]))
    def dropout(self, p: float) -> None:
        self.note("dropout", 1, p)

    @rule(value=st.sampled_from([0.5, 1.0]))
    def gain(self, value: float) -> None:
        self.note("gain", 2, value)

    @rule(seed=SEED)
    def evaluate(self, seed: int) -> None:
        self.note("evaluate", seed)

    @precondition(lambda self: self.is_whole)
    @rule(seed=SEED)
    def forward_only(self, seed: int) -> None:
        self.note("forward_only", seed)

    @precondition(lambda self: self.is_whole)
    @rule(seed=SEED)
    def failing_backward(self, seed: int) -> None:
        self.note("failing_backward", seed)

    @rule()
    def failing_forward(self) -> None:
        self.note("failing_forward")

    @rule(norm=st.sampled_from([0.01, 1.0]))
    def clip(self, norm: float) -> None:
        self.note("clip", norm)

    @rule()
    def average(self) -> None:
        self.note("average")

    @rule(factor=st.sampled_from([0.5, 2.0]))
    def rate(self, factor: float) -> None:
        self.note("rate", factor)

    @rule()
    def schedule(self) -> None:
        self.note("schedule")

    @rule()
    def full_state(self) -> None:
        self.note("full_state")

    @rule()
    def save(self) -> None:
        self.note("save")
        self.has_saved = True

    @precondition(lambda self: self.has_saved)
    @rule()
    def load(self) -> None:
        self.note("load")

    @rule(operation=st.integers(1, OPERATIONS))
    def killed_save(self, operation: int) -> None:
        self.note("killed_save", operation)
        self.has_saved = True

    @rule(layout=LAYOUT)
    def resume(self, layout: str) -> None:
        """Or in the one behind it that can have the model."""
        every = list(LAYOUTS)
        place = every.index(layout)
        turned = (*every[place:], *every[:place])
        self.layout = next(each for each in turned if self.may_be(self.setting, each))
        self.note(RESUME, self.layout)
        self.has_saved = True


def machine(
    run: Callable[[Program], None], models: Mapping[str, Sequence[str]] = ALL
) -> type[TrainingMachine]:
    """A machine that gives its programs to `run`; in each layout it trains those models."""
    inside = {"run": staticmethod(run), "models": models}
    return type("TrainingPrograms", (TrainingMachine,), inside)
