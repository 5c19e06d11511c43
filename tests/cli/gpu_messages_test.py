#!/usr/bin/env python3
"""What programs say about CUDA on machines without it, or with too few devices. A stand-in for the
driver shows the devices that FAKE_CUDA_DEVICES lists.

    gpu_messages_test.py RUN REPORT TRAIN FAKE_DRIVER_FOLDER [NCCL_LIBRARY]
"""
import os
import subprocess
import sys
import tempfile
import unittest

RUN, REPORT, TRAIN, DRIVER = sys.argv[1:5]
LIBRARY = sys.argv[5] if len(sys.argv) > 5 else ""
DROPPED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TESSERA_BACKEND",
           "TESSERA_DEVICE", "TESSERA_NCCL_LIBRARY", "CUDA_VISIBLE_DEVICES", "FAKE_CUDA_DEVICES")


def run(command, devices=None, **variables):
    """devices: what the stand-in shows; None: the machine's own driver, if any, told to show nothing."""
    environment = {name: value for name, value in os.environ.items() if name not in DROPPED}
    environment["TESSERA_TIMEOUT_SECONDS"] = "30"
    if devices is None:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    else:
        environment["FAKE_CUDA_DEVICES"] = devices
        environment["LD_LIBRARY_PATH"] = DRIVER
        # Whatever is built here: with the stand-in nothing of CUDA must be loaded.
        environment["TESSERA_NCCL_LIBRARY"] = "/no/such/libtessera_nccl.so"
    environment.update(variables)
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)


def ranks(count, *command):
    return [RUN, "--nproc", str(count), "--", *command]


class WithoutDevice(unittest.TestCase):
    def check_one_message(self, result, *parts):
        self.assertNotEqual(result.returncode, 0)
        self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
        for part in parts:
            self.assertIn(part, result.stderr)

    def test_one_clear_message(self):
        result = run([REPORT], TESSERA_BACKEND="nccl")
        self.check_one_message(result, "CUDA cannot be used", "TESSERA_BACKEND=shm or gloo trains on the CPU", "CUDA driver")

    def test_trainer_says_the_same(self):
        with tempfile.NamedTemporaryFile("w") as data:
            data.write("a few words to train on. " * 200)
            data.flush()
            result = run([TRAIN, "gpt", "--preset", "tiny", "--data", data.name, "--steps", "1"], TESSERA_BACKEND="nccl")
        self.check_one_message(result, "CUDA cannot be used", "CUDA driver")

    def test_cuda_device_asked_for(self):
        self.check_one_message(run([REPORT], TESSERA_DEVICE="cuda"), "CUDA cannot be used")

    def test_every_rank_ends(self):
        result = run(ranks(2, REPORT), TESSERA_BACKEND="nccl")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("CUDA cannot be used", result.stderr + result.stdout)
        self.assertIn("rank 0: ", result.stderr + result.stdout)

    def test_auto_is_silent(self):
        result = run([REPORT])
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn("device cpu backend single", result.stdout)


class Contradictions(unittest.TestCase):
    def test_are_refused(self):
        for variables, part in (
                ({"TESSERA_DEVICE": "gpu"}, 'TESSERA_DEVICE="gpu" is not one of auto, cpu, cuda'),
                ({"TESSERA_DEVICE": "cpu", "TESSERA_BACKEND": "nccl"}, "backend nccl needs CUDA devices"),
                ({"TESSERA_DEVICE": "cuda", "TESSERA_BACKEND": "shm"}, "backend shm is for the CPU")):
            with self.subTest(part=part):
                result = run([REPORT], **variables)
                self.assertEqual(result.returncode, 1)
                self.assertIn(part, result.stderr)


class TooFewDevices(unittest.TestCase):
    def check_refused(self, result, text):
        self.assertNotEqual(result.returncode, 0)
        self.assertIn(text, result.stderr + result.stdout)

    def test_three_ranks_one_device(self):  # BL-80
        result = run(ranks(3, REPORT), devices="0", TESSERA_BACKEND="nccl")
        self.check_refused(result, "3 ranks, 1 CUDA device: ranks 0 and 1 would use the same device")

    def test_three_ranks_two_devices(self):
        result = run(ranks(3, REPORT), devices="0,1", TESSERA_BACKEND="nccl")
        self.check_refused(result, "3 ranks on this host, but 2 CUDA devices visible")

    def test_one_device_each_passes(self):
        # As Slurm does it: each rank sees one device, another one. What stops it then is the library.
        each = ["sh", "-c", 'FAKE_CUDA_DEVICES="$LOCAL_RANK" exec "$0"', REPORT]
        result = run(ranks(3, *each), devices="0", TESSERA_BACKEND="nccl")
        self.check_refused(result, 'rank 0: TESSERA_NCCL_LIBRARY="/no/such/libtessera_nccl.so" is not a file')

    def test_one_rank_without_a_device_is_named(self):
        each = ["sh", "-c", 'test "$LOCAL_RANK" = 1 && unset FAKE_CUDA_DEVICES; exec "$0"', REPORT]
        result = run(ranks(2, *each), devices="0,1", TESSERA_BACKEND="nccl")
        self.check_refused(result, "rank 1: the CUDA driver shows no device: CUDA_ERROR_NO_DEVICE")

    def test_auto_takes_the_cpu_and_says_so(self):
        result = run(ranks(2, REPORT), devices="0")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("device cpu backend shm sum 6", result.stdout)
        self.assertEqual(result.stderr.count("using the CPU, not CUDA"), 1, result.stderr)
        self.assertIn("2 ranks, 1 CUDA device", result.stderr)

    def test_told_to_use_the_cpu(self):
        result = run(ranks(2, REPORT), devices="0", TESSERA_DEVICE="cpu")
        self.assertEqual(result.returncode, 0)
        self.assertNotIn("CUDA", result.stderr + result.stdout)


@unittest.skipIf(not LIBRARY, "tessera_nccl is not built here")
class RealLibrary(unittest.TestCase):
    def test_driver_without_the_rest_of_cuda(self):
        # The stand-in shows a device; LibTorch's CUDA libraries are missing, or cannot use it.
        result = run([REPORT], devices="0", TESSERA_BACKEND="nccl", TESSERA_NCCL_LIBRARY=LIBRARY)
        self.assertEqual(result.returncode, 1)
        self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
        self.assertRegex(result.stderr, "cannot be loaded: .*cannot open shared object|LibTorch cannot use them")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
