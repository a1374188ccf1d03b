"""A block that is broken is seen, whatever it is: pages made wrong on purpose."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.docs.blocks import PageError, blocks
from tests.docs.runner import Runner

GOOD = """
```python title="half.py"
def half(x):
    return x // 2
```

```python
from half import half

print(half(8), "and more")
```

```text
4 ...
```

```sh
echo one  two \\
    three
false  # exits with 1
```

```text
one two three
```

```json title="four.json"
{"four": 4}
```

<!-- excerpt of four.json -->
```json
{"four": ...
```
"""
WRONG = {
    "python raises": ("half(8)", "half()", "TypeError"),
    "python prints another thing": ("4 ...", "5 ...", "says otherwise"),
    "a command fails": ("false  # exits with 1", "false", "exits with 1, not 0"),
    "a command does not fail": ("false", "true", "exits with 0, not 1"),
    "a command prints another thing": ("one two three", "one two", "says otherwise"),
    "a command is unknown": ("echo one", "autopars", "exits with 127"),
    "data do not parse": ('json title="four.json"\n{', 'json title="four.json"\n', "Extra data"),
    "an excerpt is of something else": ('{"four": ...', '{"five": ...', "says otherwise"),
    "an unknown kind": ("```sh", "```console", "no rule says"),
    "no kind": ("```sh", "```", "no rule says"),
    "an unknown option": ("title=", "file=", "no rule says"),
    "a text that nothing prints": ("```sh", "Words.\n\n```text\nx\n```\n\n```sh", "nothing prints"),
    "no fence": ("```sh", "Words.\n\n    make demo\n\n```sh", "without a fence"),
    "a test that is not there": (
        "```sh",
        "<!-- checked by tests/no.py -->\n```text\nx\n```\n\n```sh",
        "no such test",
    ),
}


def check(text: str, folder: Path, environment: Mapping[str, str]) -> None:
    Runner(folder, True, environment).run(blocks(text, "page.md"))


@pytest.mark.thorough
def test_a_good_page(page_folder: Path, forked: Mapping[str, str]) -> None:
    check(GOOD, page_folder, forked)


@pytest.mark.thorough
@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_page(fault: str, page_folder: Path, forked: Mapping[str, str]) -> None:
    old, new, message = WRONG[fault]
    assert GOOD.count(old) >= 1
    with pytest.raises(PageError, match=message):
        check(GOOD.replace(old, new), page_folder, forked)


@pytest.mark.thorough
def test_a_rank_that_fails_fails_the_page(page_folder: Path, forked: Mapping[str, str]) -> None:
    text = (
        "```python\n# torchrun --nproc-per-node 2 both.py\nimport os\n\n"
        'assert os.environ["RANK"] == "0", "rank one"\n```\n'
    )
    with pytest.raises(PageError, match="rank one"):
        check(text, page_folder, forked)


@pytest.mark.thorough
def test_slow_blocks_wait_for_the_slow_run(page_folder: Path, forked: Mapping[str, str]) -> None:
    text = "<!-- slow -->\n```sh\nfalse\n```\n\n```text\nnothing\n```\n"
    check(text, page_folder, forked)
    with pytest.raises(PageError, match="exits with 1"):
        Runner(page_folder, False, forked).run(blocks(text, "page.md"))


@pytest.mark.thorough
def test_a_cluster(page_folder: Path, forked: Mapping[str, str]) -> None:
    text = (
        '```sh title="job.sh"\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n'
        "srun sh -c 'echo node $SLURM_NODEID of $SLURM_JOB_NUM_NODES >> $SLURM_NODEID.txt'\n```\n\n"
        "```sh\nsbatch job.sh\ncat 0.txt 1.txt\n```\n\n```text\nnode 0 of 2\nnode 1 of 2\n```\n"
    )
    check(text, page_folder, forked)
