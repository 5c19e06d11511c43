#!/usr/bin/env python3
"""scripts/gpu_check.sh without a GPU: what it would run, and what it says where something is missing.

    gpu_check_test.py SCRIPT BUILD_FOLDER
"""
import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT, BUILD = sys.argv[1:3]


def run(*arguments):
    environment = dict(os.environ, CUDA_VISIBLE_DEVICES="")
    return subprocess.run(["bash", SCRIPT, *arguments], env=environment, capture_output=True, text=True, timeout=120, check=False)


class GpuCheck(unittest.TestCase):
    def test_dry_run_finds_every_program(self):
        result = run("--dry-run", BUILD)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertTrue(result.stdout.rstrip().endswith("dry run: every program is there"))
        for part in ("communicator, nccl, 1 ranks", "fsdp_training_test, nccl, 1 ranks", "fsdp_programs_test, gloo, 2 ranks on CUDA",
                     "checkpoint_device_test, one GPU without communication", "gpt, resumed to 8", "more ranks than GPUs are refused"):
            self.assertIn("would run " + part, result.stdout)
        self.assertNotIn("FAIL", result.stdout)

    def test_missing_programs_are_named(self):
        with tempfile.TemporaryDirectory() as empty:
            result = run("--dry-run", empty)
        self.assertEqual(result.returncode, 1)
        self.assertIn("FAIL programs", result.stdout)
        self.assertIn("bin/communicator_test is missing", result.stdout)

    def test_without_a_gpu_it_fails_at_once(self):
        result = run(BUILD)
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertRegex(result.stdout, "FAIL device: .*CUDA cannot be used|FAIL programs: .*libtessera_nccl.so is missing")

    def test_unknown_argument(self):
        self.assertEqual(run("--fast").returncode, 2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
