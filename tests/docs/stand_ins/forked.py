"""`autopar`, `torchrun` and `python` without their three seconds of imports, for the everyday run.

``forked.py serve SOCKET`` imports everything once and forks a child for every command that a client,
``forked.py NAME ARGUMENTS...``, asks for; the child has the client's folder, environment and files.
The slow run of the pages uses the real commands.
"""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import sys
import traceback

STREAMS = (0, 1, 2)


def client(name: str, arguments: list[str]) -> int:
    """Send a command and the standard files; give its exit code."""
    python = os.environ["REAL_PYTHON"]
    options = {word.split("=")[0] for word in arguments}
    if name == "torchrun" and not {"--nnodes", "--rdzv-endpoint"}.isdisjoint(options):
        # Several launchers that find each other are the real one's business.
        os.execv(python, [python, "-m", "torch.distributed.run", *arguments])
    if name == "python" and not (arguments and arguments[0].endswith(".py")):
        os.execv(python, [python, *arguments])
    line = socket.socket(socket.AF_UNIX)
    line.connect(os.environ["FORKED_SOCKET"])
    said = json.dumps([name, arguments, os.getcwd(), dict(os.environ)]).encode()
    files = array.array("i", STREAMS)
    line.sendmsg([len(said).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
    line.sendall(said)
    answer = line.recv(1)
    return answer[0] if answer else 70


def serve(path: str) -> None:
    """Until the standard input is closed."""
    import transformers.models.gpt2.modeling_gpt2
    import transformers.models.llama.modeling_llama

    import autopar.cli.app
    import autopar.runtime.checkpoint
    import autopar.runtime.pipeline.module  # noqa: F401

    del transformers
    door = socket.socket(socket.AF_UNIX)
    door.bind(path)
    door.listen()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who answer
    print("ready", flush=True)
    while True:
        line, _ = door.accept()
        if os.fork() == 0:
            door.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            answer(line)
        line.close()


def answer(line: socket.socket) -> None:
    """One command, to its end."""
    header, ancillary, *_ = line.recvmsg(8, socket.CMSG_SPACE(len(STREAMS) * 4))
    files = array.array("i")
    files.frombytes(ancillary[0][2])
    said = b""
    while len(said) < int.from_bytes(header, "big"):
        said += line.recv(1 << 16)
    name, arguments, folder, environment = json.loads(said)
    for there, here in zip(files, STREAMS, strict=True):
        os.dup2(there, here)
        os.close(there)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    code = launch(arguments) if name == "torchrun" else child(name, arguments, {})
    line.send(bytes([code & 0xFF]))
    os._exit(0)


def launch(arguments: list[str]) -> int:
    """What torchrun does on one host; when a rank fails the others are ended."""
    from torch.distributed import TCPStore  # those who only ask for a command do not wait for torch

    words = list(arguments)
    ranks = 1
    while words[0].startswith("-"):
        option = words.pop(0)
        if option == "--nproc-per-node":
            ranks = int(words.pop(0))
        elif option != "--standalone":
            print(f"torchrun here knows no {option}")
            return 2
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = {}
    for rank in range(ranks):
        number = str(rank)
        place = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": str(ranks)}
        place |= {"LOCAL_WORLD_SIZE": str(ranks), "MASTER_PORT": str(port)}
        place |= {"TORCHELASTIC_USE_AGENT_STORE": "True"}
        running[fork("python", words, place | {"MASTER_ADDR": "127.0.0.1"})] = rank
    # The launcher keeps the store, so that a rank that is done takes it from nobody.  It is made after
    # the ranks: its thread would not come along.
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    worst = 0
    while running:
        number, status = os.wait()
        del running[number]
        if status and not worst:
            worst = 1
            for other in running:
                os.kill(other, signal.SIGTERM)
    del store
    return worst


def child(name: str, arguments: list[str], place: dict[str, str]) -> int:
    """Run in a process of its own and wait; give the exit code."""
    _, status = os.waitpid(fork(name, arguments, place), 0)
    return os.waitstatus_to_exitcode(status)


def fork(name: str, arguments: list[str], place: dict[str, str]) -> int:
    """Start a command; give the number of its process."""
    number = os.fork()
    if number:
        return number
    code: object = 0
    try:
        os.environ.update(place)
        sys.argv = [name, *arguments] if name == "autopar" else list(arguments)
        main(name)
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def main(name: str) -> None:
    """What the command's own main program would do."""
    if name == "autopar":
        from autopar.cli.app import main as command

        command()
    import runpy

    script = sys.argv[0]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    sys.exit(client(sys.argv[1], sys.argv[2:]))
