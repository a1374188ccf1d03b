"""A process that ends while its watch for other ranks' failures asks the store without a pause."""

from __future__ import annotations

import time

import torch.distributed as dist

from autopar.runtime import failure_watchdog as faults
from autopar.runtime import watcher

watcher.POLL_S = 0.0
store = dist.TCPStore("127.0.0.1", 0, 1, True)
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
faults._watch.start()
time.sleep(0.2)
dist.destroy_process_group()
