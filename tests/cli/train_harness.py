"""Runs the real tessera-train, alone or under tessera-run. TESSERA_TRAIN and TESSERA_RUN name them."""

import array
import json
import math
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

RUN = os.environ["TESSERA_RUN"]
TRAIN = os.environ["TESSERA_TRAIN"]
DEADLINE = 90.0

COMPLETE, FAILED, BAD_USAGE = 0, 1, 2
INTERRUPTED_SAVED, PEER_LOST, INTERRUPTED_UNSAVED = 75, 76, 77

# Models that take milliseconds a step.
SMALL = {
    "gpt": ["--width", "16", "--layers", "2", "--heads", "2", "--context", "16", "--batch", "7"],
    "wordvec": ["--vocab-size", "60", "--dim", "8", "--window", "2", "--batch", "33"],
}


def clean_environment():
    """The caller's environment without what a launcher around the tests may have set."""
    names = ("RANK", "WORLD", "MASTER", "TORCHELASTIC", "TESSERA")
    env = {k: v for k, v in os.environ.items() if not any(n in k for n in names)}
    env["OMP_NUM_THREADS"] = "1"
    env["TESSERA_TIMEOUT_SECONDS"] = "60"
    return env


def make_text(words=6000):
    """Sentences over a small vocabulary; always the same."""
    generator = random.Random(7)
    vocabulary = ["".join(generator.choice("abcdefghij") for _ in range(generator.randint(2, 7)))
                  for _ in range(80)]
    weights = [1 / (i + 1) for i in range(len(vocabulary))]
    return " ".join(generator.choices(vocabulary, weights, k=words)) + ".\n"


def read_safetensors(path):
    """{name: (dtype, shape, values)}."""
    with open(path, "rb") as file:
        data = file.read()
    length = int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        values = array.array({"F32": "f", "F64": "d"}[entry["dtype"]])
        values.frombytes(data[8 + length + begin:8 + length + end])
        tensors[name] = (entry["dtype"], entry["shape"], values)
    return tensors


def relative_distance(actual, expected):
    """By norm."""
    difference = math.sqrt(sum((a - b) ** 2 for a, b in zip(actual, expected)))
    return difference / max(math.sqrt(sum(b * b for b in expected)), 1e-30)


class TrainTest(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="train-test-")
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.data = self.write("text.txt", make_text())

    def path(self, name):
        return os.path.join(self.dir, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        return self.path(name)

    def start_process(self, command, env=None, before_exec=None):
        full = clean_environment()
        full.update(env or {})
        process = subprocess.Popen(list(map(str, command)), env=full, stdin=subprocess.DEVNULL,
                                   preexec_fn=before_exec,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(self._end, process)
        return process

    def _end(self, process):
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(DEADLINE)
        process.stdout.close()
        process.stderr.close()

    def start(self, ranks, task, *flags, data=None, small=True, env=None, before_exec=None):
        """ranks 0: the program itself, without a launcher."""
        command = [] if ranks == 0 else [RUN, "--nproc", ranks, "--"]
        command += [TRAIN, task, *(SMALL[task] if small else []), "--data", data or self.data, *flags]
        return self.start_process(command, env, before_exec)

    def finish(self, process):
        out, err = process.communicate(timeout=DEADLINE)
        return process.returncode, out, err

    def train(self, ranks, task, *flags, code=COMPLETE, **kwargs):
        """(standard output, standard error) of a run that must end with this code."""
        actual, out, err = self.finish(self.start(ranks, task, *flags, **kwargs))
        self.assertEqual(actual, code, f"{flags}\n{out}\n{err}")
        return out, err

    def wait_until(self, condition, what):
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            value = condition()
            if value:
                return value
            time.sleep(0.005)
        self.fail(f"waited {DEADLINE:.0f} s for {what}")

    def metrics(self, name):
        with open(self.path(name), encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def wait_for_steps(self, name, steps):
        """Until the metrics file has so many lines."""
        def enough():
            try:
                with open(self.path(name), "rb") as file:
                    return file.read().count(b"\n") >= steps
            except FileNotFoundError:
                return False
        self.wait_until(enough, f"{steps} steps in {name}")

    def losses(self, name):
        return [line["loss"] for line in self.metrics(name)]

    def bytes_of(self, *parts):
        with open(os.path.join(self.dir, *parts), "rb") as file:
            return file.read()

    def free_port(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return probe.getsockname()[1]
