"""`strict`: a `torch.distributed` backend that carries out collectives on CPUs by NCCL's rules.

What gloo forgives, NCCL does not.  The rules, each with a test in `test_rules.py`:

- A communicator runs what it is given in order, one after the other, and every rank of it has to give it
  the same: kind, dtype, shapes, operator, root.  A difference is an error with both ranks' stacks.
- Unbatched transfers of a pair of ranks, in both directions, go through one queue in the order in which
  they were issued.  There are no tags.  Transfers of a batch (`dist.batch_isend_irecv`) are one entry of
  the group's own queue.
- Nothing moves before both sides are there.
- Results are garbage until they are waited for.  Inputs may not change, and results may not be written,
  until then.

Operations start after random delays, from `AUTOPAR_STRICT_SEED`.  What does not end within
`AUTOPAR_STRICT_S` seconds is an error that says what the rank was waiting for.

Unlike NCCL, a call without ``async_op`` blocks the host until it is done: a program that needs the host
to run ahead of such a call hangs here and not there.
"""

from tests.strict.process_group import StrictError, register

__all__ = ["StrictError", "register"]
