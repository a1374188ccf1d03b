"""A save that ends at any instant leaves the last whole checkpoint, and what is damaged is noticed."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from autopar.errors import CheckpointError
from autopar.runtime import checkpoint
from tests.files.saving import Training, failing, saved

SOME = 12


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Forked processes have one thread, and sums of several threads are rounded differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


def test_a_run_goes_on_as_if_it_had_not_ended(path: Path) -> None:
    training = saved(path)
    rest = [training.step() for _ in range(3)]
    again = Training(seed=5)
    again.step()
    assert again.load(path) == 2
    assert [again.step() for _ in range(3)] == rest
    assert again.state() == training.state()


def test_the_directory_is_a_checkpoint_wherever_it_lies(path: Path) -> None:
    training = saved(path)
    training.save(path, 3)
    shutil.copytree(path, path.with_name("copy"))
    os.replace(path, path.with_name("moved"))
    path.symlink_to(path.with_name("moved"))
    for each in (path, path.with_name("copy"), path.with_name("moved")):
        assert Training(1).load(each) == 3
    training.save(path, 4)
    assert path.is_symlink() and Training(1).load(path) == 4
    assert len(list(path.iterdir())) == 2, "one version, and the file that names it"


def whole(path: Path, step: int) -> bool:
    """Whether that step's checkpoint is there, every value of it."""
    expected = Training()
    for _ in range(step):
        expected.step()
    found = Training(7)
    return found.load(path) == step and found.state()[:6] == expected.state()[:6]


def calls_of_a_save(folder: Path) -> int:
    training = saved(folder / "first")
    with failing(0, lambda: None) as count:
        training.save(folder / "first", 3)
    return count[0]


def in_a_process(action: Callable[[], None]) -> Any:
    """Forked, so that what it does of its own stays there."""
    process = multiprocessing.get_context("fork").Process(target=action)
    process.start()
    return process


def third(path: Path, number: int, fail: Callable[[], None]) -> None:
    """A third step's save, which fails at that call."""
    training = Training()
    for _ in range(3):
        training.step()
    with failing(number, fail):
        training.save(path, 3)


def instants(most: int, all_of_them: bool) -> list[int]:
    every = list(range(1, most + 1))
    return every if all_of_them else every[:: max(1, most // SOME)] + every[-3:]


def killed_at_calls(folder: Path, all_of_them: bool) -> None:
    most = calls_of_a_save(folder)
    assert most > 30
    path = folder / "kept"
    for number in instants(most, all_of_them):
        shutil.rmtree(path, ignore_errors=True)
        saved(path)
        process = in_a_process(lambda n=number: third(path, n, lambda: os._exit(9)))  # type: ignore[misc]
        process.join()
        assert process.exitcode in (0, 9)
        assert whole(path, 2) if Training(3).load(path) == 2 else whole(path, 3), number
        after = Training()
        after.load(path)
        after.save(path, 9)
        assert Training().load(path) == 9, f"what was left at call {number} is in no one's way"
        assert len(list(path.iterdir())) == 2


@pytest.mark.slow
def test_a_save_killed_at_some_calls_leaves_a_whole_one(tmp_path: Path) -> None:
    killed_at_calls(tmp_path, all_of_them=False)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_save_killed_at_every_call_leaves_a_whole_one(tmp_path: Path) -> None:
    killed_at_calls(tmp_path, all_of_them=True)


def refused_at_calls(folder: Path, all_of_them: bool) -> None:
    most = calls_of_a_save(folder)
    path = folder / "kept"
    for number in instants(most, all_of_them):
        saved(path)

        def full() -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        try:
            third(path, number, full)
        except CheckpointError as error:
            assert "No space left on device" in str(error), error
        step = Training(3).load(path)
        assert step in (2, 3) and whole(path, step), number


@pytest.mark.thorough
def test_a_full_disk_leaves_a_whole_one(tmp_path: Path) -> None:
    refused_at_calls(tmp_path, all_of_them=False)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_disk_full_at_every_call_leaves_a_whole_one(tmp_path: Path) -> None:
    refused_at_calls(tmp_path, all_of_them=True)


def saving_for_ever(path: Path) -> None:
    training = Training()
    step = 0
    while True:
        step += 1
        training.step()
        training.save(path, step)


def killed_at_random(path: Path, times: int) -> None:
    chance = random.Random(0)
    last = 0
    for _ in range(times):
        process = in_a_process(lambda: saving_for_ever(path))
        started = time.monotonic()
        while not (path / ".metadata").exists() and time.monotonic() < started + 60:
            time.sleep(0.001)
        time.sleep(chance.random() * 0.2)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        last = Training().load(path)
        assert last >= 1 and whole(path, last)


@pytest.mark.thorough
def test_a_save_killed_at_random_instants_leaves_a_whole_one(path: Path) -> None:
    killed_at_random(path, 5)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_save_killed_at_200_instants_leaves_a_whole_one(path: Path) -> None:
    killed_at_random(path, 200)


def flipped(path: Path, times: int) -> None:
    training = saved(path)
    training.save(path, 3)
    files = sorted(each for each in path.rglob("*") if each.is_file())
    sizes = [each.stat().st_size for each in files]
    chance = random.Random(1)
    for number in range(times):
        # Every file has its turn, small ones too.
        file = files[number % len(files)] if number % 2 else chance.choices(files, sizes)[0]
        before = file.read_bytes()
        content = bytearray(before)
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        file.write_bytes(content)
        other = Training(4)
        other.step()
        state = other.state()
        with pytest.raises(CheckpointError):
            other.load(path)
        assert other.state() == state, "nothing was changed"
        file.write_bytes(before)
    assert Training().load(path) == 3


def test_flipped_bits_are_noticed(path: Path) -> None:
    flipped(path, 40)


@pytest.mark.slow
def test_300_flipped_bits_are_noticed(path: Path) -> None:
    flipped(path, 300)


def test_files_that_are_missing_cut_or_swapped_are_noticed(path: Path) -> None:
    saved(path)
    files = sorted(each for each in path.rglob("*") if each.is_file())
    for file in files:
        before = file.read_bytes()
        for content in (None, b"", before[:-1]):
            file.unlink()
            if content is not None:
                file.write_bytes(content)
            with pytest.raises(CheckpointError):
                Training().load(path)
            file.write_bytes(before)
    other = path.with_name("other")
    saved(other, steps=3)
    for file in files:
        theirs = next(each for each in other.rglob(file.name) if each.is_file())
        if theirs.read_bytes() != file.read_bytes():
            before = file.read_bytes()
            file.write_bytes(theirs.read_bytes())
            with pytest.raises(CheckpointError):
                Training().load(path)
            file.write_bytes(before)
    assert Training().load(path) == 2


def test_places_where_nothing_can_be_saved(path: Path, tmp_path: Path) -> None:
    training = Training()
    path.write_text("a file")
    with pytest.raises(CheckpointError, match="is a file; a checkpoint is a directory"):
        training.save(path, 1)
    assert path.read_text() == "a file"
    with pytest.raises(CheckpointError, match="is a file, not a directory"):
        training.load(path)
    with pytest.raises(CheckpointError, match=r"Cannot save .*Not a directory"):
        training.save(path / "below", 1)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"has no \.metadata"):
        training.load(tmp_path / "empty")


def test_two_jobs_do_not_save_to_one_path_at_a_time(path: Path) -> None:
    training = saved(path)
    from autopar.runtime.checkpoints.directory import Version

    version = Version.begin(path)
    with pytest.raises(CheckpointError, match="Another process is saving"):
        training.save(path, 3)
    version.drop()
    version.end()
    training.save(path, 4)
    assert Training().load(path) == 4


def test_a_killed_save_of_an_older_autopar_is_spoken_of(path: Path) -> None:
    saved(path)
    os.replace(path, path.with_name(".checkpoint.old"))
    with pytest.raises(
        CheckpointError, match=r"complete checkpoint before it is .*\.checkpoint\.old"
    ):
        Training().load(path)


def test_a_checkpoint_without_digests_loads_with_a_word(path: Path) -> None:
    from torch.distributed.checkpoint import FileSystemWriter, state_dict_saver

    training = Training()
    training.step()
    state = checkpoint._plain_state(training.model, training.optimizer, 1)
    with checkpoint._alone_is_fine():
        state_dict_saver.save(state, storage_writer=FileSystemWriter(path), no_dist=True)
    other = Training(3)
    with pytest.warns(UserWarning, match="without digests"):
        assert checkpoint.load(path, other.model, other.optimizer) == 1
    assert other.state()[:3] == training.state()[:3]
    training.save(path, 2)  # in its place
    assert Training().load(path) == 2 and len(list(path.iterdir())) == 2
