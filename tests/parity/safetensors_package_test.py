"""Reads checkpoints with the Python package `safetensors`, and compares runs through what it reads."""

import glob
import json
import os
import signal
import textwrap
import unittest

import numpy
from safetensors import safe_open
from safetensors.numpy import load_file

from train_harness import TrainTest

EVERY = 10


def rank_process(launcher, rank):
    """The process that this launcher started as this rank, or None."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
            with open(f"/proc/{name}/environ", "rb") as file:
                variables = file.read().split(b"\0")
        except (OSError, ProcessLookupError):
            continue
        if parent == launcher and f"RANK={rank}".encode() in variables:
            return int(name)
    return None


class SafetensorsPackage(TrainTest):
    def flags(self, name, kind, steps):
        return ["--steps", steps, "--checkpoint-dir", self.path(name), "--checkpoint-every", EVERY,
                "--kind", kind, "--metrics", self.path(name + ".jsonl")]

    def files(self, name, step, pattern):
        return sorted(glob.glob(os.path.join(self.path(name), f"step-{step:08d}", pattern)))

    def read_full(self, name, step):
        tensors = {}
        for file in self.files(name, step, "*.safetensors"):
            tensors.update(load_file(file))
        return {key: value for key, value in tensors.items() if not key.startswith("rng.")}

    def read_sharded(self, name, step):
        """Whole tensors, put together from every rank's rows by the offsets that the files state."""
        boxes = {}
        for file in self.files(name, step, "*.safetensors"):
            with safe_open(file, "numpy") as content:
                offsets = json.loads(content.metadata()["DCP_SHARDING_INFO"])
                for key in content.keys():
                    if key.startswith("rng."):
                        continue  # each rank's own
                    first = (offsets[key]["saved_offsets"] or [0])[0]
                    boxes.setdefault(key, []).append((first, content.get_tensor(key)))
        whole = {}
        for key, parts in boxes.items():
            parts.sort(key=lambda part: part[0])
            rows = 0
            for first, part in parts:
                self.assertEqual(first, rows, f"{key}: rows are missing or stored twice")
                rows += part.shape[0] if part.ndim else 1
            whole[key] = numpy.concatenate([part for _, part in parts]) if parts[0][1].ndim else parts[0][1]
        return whole

    def expect_same_bits(self, actual, expected):
        self.assertEqual(sorted(actual), sorted(expected))
        for key, value in expected.items():
            self.assertEqual((actual[key].dtype, actual[key].shape), (value.dtype, value.shape), key)
            self.assertEqual(actual[key].tobytes(), value.tobytes(), key)

    def kill_one_rank(self, task, name):
        """Trains on two ranks and loses one after the second checkpoint; the newest whole one's step."""
        process = self.start(2, task, *self.flags(name, "full", 1000000))
        self.wait_for_steps(name + ".jsonl", 2 * EVERY + 3)
        victim = self.wait_until(lambda: rank_process(process.pid, 1), "the process of rank 1")
        os.kill(victim, signal.SIGKILL)
        code, out, err = self.finish(process)
        self.assertEqual(code, 128 + signal.SIGKILL, out + err)
        self.assertIn(f"rank 1 (pid {victim}) was killed by SIGKILL", err)
        return max(int(entry[5:]) for entry in os.listdir(self.path(name)) if entry.startswith("step-"))

    def killed_and_whole_runs_are_equal(self, task, state):
        saved = self.kill_one_rank(task, "killed")
        self.assertGreaterEqual(saved, 2 * EVERY)
        end = saved + EVERY + 3
        out, _ = self.train(2, task, *self.flags("killed", "full", end))
        self.assertIn(f"resumed at step {saved} from", out)
        self.train(2, task, *self.flags("whole", "full", end))
        whole = self.read_full("whole", end)
        self.expect_same_bits(self.read_full("killed", end), whole)
        self.assertEqual(self.losses("killed.jsonl"), self.losses("whole.jsonl"))
        for key in state:
            self.assertIn(key, whole)
        steps = {key: float(value) for key, value in whole.items() if key.endswith(".step")}
        self.assertTrue(steps)
        self.assertEqual(set(steps.values()), {float(end)}, steps)

    def test_gpt_killed_and_resumed_equals_uninterrupted(self):
        self.killed_and_whole_runs_are_equal(
            "gpt", ["tokens.weight", "blocks.1.qkv.weight", "optim.state.tokens.weight.exp_avg",
                    "optim.state.blocks.1.qkv.weight.exp_avg_sq", "optim.state.norm.bias.step"])

    def test_wordvec_killed_and_resumed_equals_uninterrupted(self):
        self.killed_and_whole_runs_are_equal(
            "wordvec", ["words.weight", "optim.state.words.weight.sum", "optim.state.contexts.weight.step"])

    def test_sharded_files_hold_what_the_full_files_hold(self):
        for ranks in (1, 3):
            for kind in ("sharded", "full"):
                self.train(ranks, "gpt", *self.flags(f"{kind}{ranks}", kind, 7))
            self.assertEqual(len(self.files(f"sharded{ranks}", 7, "*.safetensors")), ranks)
            full = self.read_full(f"full{ranks}", 7)
            sharded = {key.removeprefix("model."): value
                       for key, value in self.read_sharded(f"sharded{ranks}", 7).items()}
            self.assertGreater(len(full), 60)
            self.expect_same_bits(sharded, full)

    def test_the_reader_of_the_format_description_reads_every_kind(self):
        read = format_reader()
        dtypes = {"F32": "<f4", "I64": "<i8", "U8": "|u1"}
        for kind in ("sharded", "full", "local"):
            self.train(3, "gpt", *self.flags("described-" + kind, kind, 7))
        expected = {(key if key.startswith("optim.") else "model." + key): value
                    for key, value in self.read_full("described-full", 7).items()}
        self.assertGreater(len(expected), 60)
        for kind in ("sharded", "full", "local"):
            manifest, tensors = read(self.path(f"described-{kind}/step-00000007"))
            self.assertEqual((manifest["head"]["step"], manifest["head"]["kind"]), (7, kind))
            actual = {key: numpy.frombuffer(data, dtypes[dtype]).reshape(shape)
                      for key, (dtype, shape, data, integer) in tensors.items() if key != "rng.cpu"}
            self.expect_same_bits(actual, expected)
            self.assertEqual({integer for key, (*_, integer) in tensors.items() if key.endswith(".step")}, {7})


def format_reader():
    """The function that FORMAT.md shows, taken from its text."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    with open(os.path.join(root, "src/checkpoint/FORMAT.md"), encoding="utf-8") as file:
        code = file.read().split("## A reader in Python\n", 1)[1]
    names = {}
    exec(textwrap.dedent(code), names)  # pylint: disable=exec-used
    return names["read"]


if __name__ == "__main__":
    unittest.main(verbosity=2)
