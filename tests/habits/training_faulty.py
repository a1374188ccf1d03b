"""A program that is run wrongly, to see that it is noticed."""

from __future__ import annotations

from tests.habits import training_program, training_run


def forgets_to_step(*job: object) -> None:
    """A segment whose parallel side never updates its weights."""
    right = training_program.ACTIONS["step"]

    def step(training: training_program.Training, seed: int) -> object:
        if training.is_parallel:
            training.optimizer.step = lambda: None
        return right(training, seed)

    training_program.ACTIONS["step"] = step
    try:
        training_run.run_segment(*job)  # type: ignore[arg-type]
    finally:
        training_program.ACTIONS["step"] = right
