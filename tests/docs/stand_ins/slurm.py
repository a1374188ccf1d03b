"""`sbatch`, `srun` and `scontrol` of a cluster whose nodes are all this machine.

`sbatch script` runs the script at once, with what its ``#SBATCH`` lines ask for; `srun command` starts
the command once per task; `scontrol show hostnames` names the nodes.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path


def sbatch(arguments: list[str]) -> int:
    """The script on its first node."""
    script = arguments[-1]
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)", Path(script).read_text(), re.MULTILINE))
    nodes = asked["nodes"]
    if asked.get("ntasks-per-node") != "1":
        print("torchrun is started once per node: #SBATCH --ntasks-per-node=1")
        return 2
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        job = free.getsockname()[1]  # so that a port made of it is free
    place = {
        "SLURM_JOB_ID": str(job),
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_JOB_NODELIST": "node[0-]",
    }
    return subprocess.call(["bash", script], env={**os.environ, **place})


def srun(arguments: list[str]) -> int:
    """The command once per node, side by side."""
    words = list(arguments)
    while words[0].startswith("-"):
        words.pop(0)
    running = [
        subprocess.Popen(words, env={**os.environ, "SLURM_NODEID": str(n), "SLURM_PROCID": str(n)})
        for n in range(int(os.environ["SLURM_JOB_NUM_NODES"]))
    ]
    return max(process.wait() for process in running)


def scontrol(arguments: list[str]) -> int:
    """``show hostnames LIST``: a line per node."""
    if arguments[:2] != ["show", "hostnames"]:
        print(f"scontrol {arguments} is not known here")
        return 2
    for _ in range(int(os.environ["SLURM_JOB_NUM_NODES"])):
        print("127.0.0.1")
    return 0


if __name__ == "__main__":
    commands = {"sbatch": sbatch, "srun": srun, "scontrol": scontrol}
    sys.exit(commands[sys.argv[1]](sys.argv[2:]))
