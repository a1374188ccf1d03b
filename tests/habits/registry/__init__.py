"""What people do with DDP and FSDP, one record each: the program, the verdict, what to do instead."""

from __future__ import annotations

from collections.abc import Mapping

from tests.habits.registry.arrivals import ARRIVALS
from tests.habits.registry.batches import BATCHES
from tests.habits.registry.gradients import GRADIENTS
from tests.habits.registry.habit import Habit
from tests.habits.registry.held import HELD
from tests.habits.registry.loops import LOOPS
from tests.habits.registry.modules import MODULES
from tests.habits.registry.optimizers import OPTIMIZERS
from tests.habits.registry.processes import PROCESSES
from tests.habits.registry.states import STATES
from tests.habits.registry.weights import WEIGHTS

SECTIONS: Mapping[str, tuple[Habit, ...]] = {
    "The loop": LOOPS,
    "Gradients": GRADIENTS,
    "Optimizers and schedulers": OPTIMIZERS,
    "Weights": WEIGHTS,
    "Modules": MODULES,
    "What a model holds": HELD,
    "Batches": BATCHES,
    "Models": ARRIVALS,
    "Saving and loading": STATES,
    "Processes and loaders": PROCESSES,
}
HABITS: Mapping[str, Habit] = {each.name: each for part in SECTIONS.values() for each in part}
