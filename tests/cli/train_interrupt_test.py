"""Runs that are stopped, politely or not, and what remains of them."""

import os
import re
import resource
import signal
import unittest

from train_harness import (DEADLINE, FAILED, INTERRUPTED_SAVED, INTERRUPTED_UNSAVED, PEER_LOST, TRAIN,
                           TrainTest)

ENDLESS = 10**6


class Interrupt(TrainTest):
    def interrupt(self, ranks, task, number, *flags):
        """Stops a run after a few steps; (code, output, last step in the metrics)."""
        process = self.start(ranks, task, "--steps", ENDLESS, "--metrics", self.path("m.jsonl"), *flags)
        self.wait_for_steps("m.jsonl", 3)
        process.send_signal(number)
        code, out, err = self.finish(process)
        return code, out + err, self.metrics("m.jsonl")[-1]["step"]

    def interrupted_is_bit_equal(self, task, number, kind):
        run = ["--kind", kind, "--checkpoint-dir", self.path("interrupted")]
        code, said, step = self.interrupt(2, task, number, *run)
        self.assertEqual(code, INTERRUPTED_SAVED, said)
        self.assertIn("interrupted after steps 1 to", said)
        self.assertTrue(os.path.isdir(self.path(f"interrupted/step-{step:08d}")), said)

        last = step + 7
        self.train(2, task, "--steps", last, *run, "--metrics", self.path("m.jsonl"),
                   "--save-final", self.path("interrupted.safetensors"))
        self.train(2, task, "--steps", last, "--kind", kind, "--checkpoint-dir", self.path("whole"),
                   "--metrics", self.path("whole.jsonl"),
                   "--save-final", self.path("whole.safetensors"))
        self.assertEqual(self.losses("m.jsonl"), self.losses("whole.jsonl"))
        self.assertEqual(self.bytes_of("interrupted.safetensors"), self.bytes_of("whole.safetensors"))
        folder = f"step-{last:08d}"
        for name in os.listdir(self.path(f"whole/{folder}")):
            if name.endswith(".safetensors"):
                self.assertEqual(self.bytes_of("interrupted", folder, name),
                                 self.bytes_of("whole", folder, name), name)

    def test_gpt_sigterm_full(self):
        self.interrupted_is_bit_equal("gpt", signal.SIGTERM, "full")

    def test_gpt_sigint_sharded(self):
        self.interrupted_is_bit_equal("gpt", signal.SIGINT, "sharded")

    def test_wordvec_sigterm_full(self):
        self.interrupted_is_bit_equal("wordvec", signal.SIGTERM, "full")

    def test_wordvec_sigterm_local(self):
        self.interrupted_is_bit_equal("wordvec", signal.SIGTERM, "local")

    def test_without_a_folder_nothing_is_saved_and_it_says_so(self):
        code, said, _ = self.interrupt(2, "gpt", signal.SIGTERM)
        self.assertEqual(code, INTERRUPTED_UNSAVED, said)
        self.assertIn("nothing was saved", said)

    def test_one_rank_alone(self):
        code, said, step = self.interrupt(0, "gpt", signal.SIGINT, "--checkpoint-dir", self.path("run"))
        self.assertEqual(code, INTERRUPTED_SAVED, said)
        self.assertTrue(os.path.isdir(self.path(f"run/step-{step:08d}")), said)

    def test_closed_terminal(self):
        code, said, step = self.interrupt(0, "gpt", signal.SIGHUP, "--checkpoint-dir", self.path("run"))
        self.assertEqual(code, INTERRUPTED_SAVED, said)
        self.assertTrue(os.path.isdir(self.path(f"run/step-{step:08d}")), said)

    def test_file_size_limit_is_an_error_of_the_save(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        process = self.start(0, "gpt", "--steps", 1, "--checkpoint-dir", self.path("run"),
                             before_exec=limit)
        code, out, err = self.finish(process)
        self.assertEqual(code, FAILED, out + err)
        self.assertIn("File too large", err)

    def test_signal_to_one_rank_stops_all_at_the_same_step(self):
        process = self.start(3, "gpt", "--steps", ENDLESS, "--metrics", self.path("m.jsonl"),
                             "--checkpoint-dir", self.path("run"))
        self.wait_for_steps("m.jsonl", 3)
        os.kill(self.rank_processes(process.pid, 3)[2], signal.SIGTERM)
        code, out, err = self.finish(process)
        self.assertEqual(code, INTERRUPTED_SAVED, out + err)
        step = self.metrics("m.jsonl")[-1]["step"]
        self.assertTrue(os.path.isdir(self.path(f"run/step-{step:08d}")), out + err)

    def rank_processes(self, launcher, count):
        """{rank: process id} of the launcher's ranks."""
        found = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    if file.read().split(b"\0")[0] != os.fsencode(TRAIN):
                        continue
                with open(f"/proc/{name}/environ", "rb") as file:
                    env = dict(e.split(b"=", 1) for e in file.read().split(b"\0") if b"=" in e)
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    if os.fsencode(self.dir) not in file.read():
                        continue
                found[int(env[b"RANK"])] = int(name)
            except (FileNotFoundError, ProcessLookupError, KeyError):
                continue
        self.assertEqual(sorted(found), list(range(count)))
        return found

    def test_killed_rank_and_resume_from_the_last_complete_checkpoint(self):
        run = ["--checkpoint-dir", self.path("run"), "--checkpoint-every", 5,
               "--metrics", self.path("m.jsonl")]
        process = self.start(2, "gpt", "--steps", ENDLESS, *run)
        self.wait_for_steps("m.jsonl", 13)
        os.kill(self.rank_processes(process.pid, 2)[1], signal.SIGKILL)
        code, out, err = self.finish(process)
        self.assertEqual(code, 128 + signal.SIGKILL, out + err)
        self.assertRegex(err, r"first failure: rank 1 .* was killed by SIGKILL")
        lines = len(self.metrics("m.jsonl"))
        out, _ = self.train(3, "gpt", "--steps", lines + 10, *run)
        resumed = int(re.search(r"resumed at step (\d+)", out).group(1))
        self.assertEqual(resumed % 5, 0)
        self.assertGreater(resumed, 0)
        self.assertEqual([line["step"] for line in self.metrics("m.jsonl")],
                         list(range(1, lines + 11)))

    def survivor_of_a_lost_rank_exits_at_once(self, backend):
        env = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
               "MASTER_PORT": str(self.free_port()), "TESSERA_BACKEND": backend}
        command = [TRAIN, "gpt", "--data", self.data, "--steps", ENDLESS, "--checkpoint-dir",
                   self.path("run"), "--metrics", self.path("m.jsonl")]
        ranks = [self.start_process(command, {**env, "RANK": str(r), "LOCAL_RANK": str(r)})
                 for r in range(2)]
        self.wait_for_steps("m.jsonl", 3)
        ranks[1].kill()
        code, _, err = self.finish(ranks[0])
        self.assertEqual(code, PEER_LOST, err)
        self.assertIn("rank 1", err)
        self.assertEqual(err.count("tessera-train: "), 1, err)
        self.assertFalse(os.path.exists(self.path("run")) and
                         [n for n in os.listdir(self.path("run")) if n.startswith("step")])

    def test_survivor_of_a_lost_rank_shm(self):
        self.survivor_of_a_lost_rank_exits_at_once("shm")

    def test_survivor_of_a_lost_rank_gloo(self):
        self.survivor_of_a_lost_rank_exits_at_once("gloo")

    def test_full_disk_under_the_metrics_is_told_once_and_the_run_goes_on(self):
        out, _ = self.train(2, "gpt", "--steps", 5, "--metrics", "/dev/full",
                            "--checkpoint-dir", self.path("run"))
        self.assertEqual(out.count("/dev/full failed: No space left on device"), 1, out)
        self.assertTrue(os.path.isdir(self.path("run/step-00000005")), out)


if __name__ == "__main__":
    unittest.main()
