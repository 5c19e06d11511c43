"""Groups of rank processes that wait for commands: ours under tessera-run, PyTorch's started one by one."""
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
SILENCE_S = 600  # of a command; then the group is taken for hung


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Group:
    """`world` ranks; `ask` sends a command to all and returns their answers in rank order."""

    def __init__(self, name, world):
        self.name, self.world, self.processes = name, world, []
        self.folder = tempfile.TemporaryDirectory(prefix="tessera-bench-")
        self.channel = os.path.join(self.folder.name, "rank")
        for rank in range(world):
            os.mkfifo(f"{self.channel}.{rank}.in")
            os.mkfifo(f"{self.channel}.{rank}.out")
        # Opened for both directions, so that opening waits for nobody.
        self.inputs = [os.open(f"{self.channel}.{rank}.in", os.O_RDWR) for rank in range(world)]
        self.outputs = [os.fdopen(os.open(f"{self.channel}.{rank}.out", os.O_RDWR), "r", encoding="utf-8")
                        for rank in range(world)]

    def start(self, command, environment):
        # A group of its own, so that all of it can be ended.
        self.processes.append(subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL,
                                               stdout=sys.stderr, start_new_session=True))

    def ask(self, *words):
        line = " ".join(str(word) for word in words) + "\n"
        for descriptor in self.inputs:
            os.write(descriptor, line.encode())
        answers = []

        def overdue(*_):
            raise TimeoutError(f"{self.name}, {self.world} ranks: no answer to '{line.strip()}'; exit codes "
                               f"{[process.poll() for process in self.processes]}")

        def child_ended(*_):
            if any(process.poll() not in (None, 0) for process in self.processes):
                overdue()

        signal.signal(signal.SIGALRM, overdue)
        signal.signal(signal.SIGCHLD, child_ended)
        signal.alarm(SILENCE_S)
        try:
            for output in self.outputs:
                answers.append(json.loads(output.readline()))
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return answers

    def seconds(self, *words):
        return max(answer["seconds"] for answer in self.ask(*words))

    def close(self):
        for descriptor in self.inputs:
            os.write(descriptor, b"quit\n")
        for process in self.processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for descriptor in self.inputs:
            os.close(descriptor)
        for output in self.outputs:
            output.close()
        self.folder.cleanup()


def base_environment():
    names = ("RANK", "WORLD", "MASTER", "TORCHELASTIC", "TESSERA")
    environment = {k: v for k, v in os.environ.items() if not any(name in k for name in names)}
    environment["OMP_NUM_THREADS"] = "1"
    return environment


def start_ours(programs, workload, world):
    group = Group("ours", world)
    environment = base_environment()
    environment.update(TESSERA_BACKEND="shm" if world > 1 else "single", TESSERA_TIMEOUT_SECONDS=str(SILENCE_S))
    for name in ("PYTHONPATH", "LD_LIBRARY_PATH"):
        environment.pop(name, None)
    group.start([os.path.join(programs, "tessera-run"), "--nproc", str(world), "--",
                 os.path.join(programs, "checkpoint_bench"), workload, group.channel], environment)
    group.ask("hello")
    return group


def start_dcp(world, state_directory):
    group = Group("DCP", world)
    port = free_port()
    for rank in range(world):
        environment = base_environment()
        environment.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1",
                           MASTER_PORT=str(port), PYTHONDONTWRITEBYTECODE="1", PYTHONWARNINGS="ignore")
        group.start([sys.executable, os.path.join(HERE, "dcp_side.py"), group.channel], environment)
    group.ask("init", state_directory)
    return group


@contextlib.contextmanager
def closing(*groups):
    try:
        yield groups
    finally:
        for group in groups:
            group.close()
