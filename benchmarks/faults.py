"""What goes wrong on one rank of two: every kind, on either rank, under every preset and on stages.

python benchmarks/faults.py              # all of it; what the JSON has is not run again
python benchmarks/faults.py kill stop    # these kinds, again
python benchmarks/faults.py --no-run     # the table alone

A kind fails where the other rank does not end in time with the error's first words, or where an end that
is no error is taken for one (`tests/distributed/test_fault_trials.py` says what is expected of which).
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from record import Record  # noqa: E402

from tests.distributed import test_fault_trials as trials  # noqa: E402

PRESETS = (*trials.PRESETS, "nothing")
KINDS: dict[str, tuple[Callable[[str, str, int], None], tuple[str, ...]]] = {
    **{how: (trials.test_the_other_says_why, PRESETS) for how in trials.WORDS},
    **{how: (trials.test_one_that_calls_alone, trials.PRESETS) for how in trials.ALONE},
    **{how: (trials.test_an_end_is_no_error, PRESETS) for how in trials.ENDS},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*")
    parser.add_argument("--no-run", action="store_true")
    given = parser.parse_args()
    record = Record(HERE / "faults.json", list(KINDS))
    for how in [] if given.no_run else given.kinds or record.missing:
        check, presets = KINDS[how]
        began, failed = time.monotonic(), {}
        every = list(itertools.product(presets, (0, 1)))
        for preset, failing in every:
            try:
                check(preset, how, failing)
            except AssertionError as error:
                failed[f"{preset}, rank {failing}"] = str(error)[-1000:]
        seconds = round(time.monotonic() - began)
        record.keep(how, {"tried": len(every), "failed": failed, "seconds": seconds})
    record.show("tried", "failed", "seconds")


if __name__ == "__main__":
    main()
