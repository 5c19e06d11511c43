"""A run that goes on later, on as many ranks or on others, sees the same samples and numbers."""

import os
import unittest

from train_harness import TrainTest

STEPS = ["step-00000020", "step-00000040", "step-00000060"]


class Resume(TrainTest):
    def on_another_number_of_ranks(self, task):
        run = ["--checkpoint-dir", self.path("run"), "--checkpoint-every", 20,
               "--metrics", self.path("m.jsonl"), "--dtype", "fp64"]
        self.train(2, task, "--steps", 60, *run)
        self.assertEqual(sorted(n for n in os.listdir(self.path("run")) if n.startswith("step")), STEPS)
        out, _ = self.train(3, task, "--steps", 90, *run)
        self.assertIn("resumed at step 60 from", out)
        out, _ = self.train(1, task, "--steps", 100, *run)
        self.assertIn("resumed at step 90 from", out)

        self.train(0, task, "--steps", 100, "--plain", "--dtype", "fp64",
                   "--metrics", self.path("reference.jsonl"))
        resumed, reference = self.metrics("m.jsonl"), self.metrics("reference.jsonl")
        self.assertEqual([line["step"] for line in resumed], list(range(1, 101)))
        self.assertEqual([line["position"] for line in resumed],
                         [line["position"] for line in reference])
        for mine, theirs in zip(resumed, reference):
            self.assertLess(abs(mine["loss"] - theirs["loss"]), 1e-9 * abs(theirs["loss"]), mine)
        self.assertLess(resumed[-1]["loss"], resumed[0]["loss"] - 0.3)

    def test_gpt_on_another_number_of_ranks(self):
        self.on_another_number_of_ranks("gpt")

    def test_wordvec_on_another_number_of_ranks(self):
        self.on_another_number_of_ranks("wordvec")

    def test_complete_run_has_nothing_to_do(self):
        run = ["--steps", 5, "--checkpoint-dir", self.path("run"), "--metrics", self.path("m.jsonl")]
        self.train(2, "gpt", *run)
        before = sorted(os.listdir(self.path("run")))
        out, _ = self.train(2, "gpt", *run)
        self.assertIn("nothing to do", out)
        self.assertEqual(sorted(os.listdir(self.path("run"))), before)
        self.assertEqual(len(self.metrics("m.jsonl")), 5)

    def test_no_resume_starts_over_and_keeps_what_is_there(self):
        run = ["--steps", 5, "--checkpoint-dir", self.path("run"), "--metrics", self.path("m.jsonl")]
        self.train(2, "gpt", *run)
        first = self.metrics("m.jsonl")
        out, _ = self.train(2, "gpt", *run, "--no-resume")
        self.assertNotIn("resumed", out)
        self.assertEqual([line["loss"] for line in self.metrics("m.jsonl")],
                         [line["loss"] for line in first])
        self.assertEqual(len([n for n in os.listdir(self.path("run")) if n.startswith("step")]), 2)

    def test_stored_learning_rate_stays_unless_given(self):
        def last_loss(ranks, steps, *flags, folder="run"):
            metrics = self.path("m.jsonl")
            self.train(ranks, "gpt", "--steps", steps, "--checkpoint-dir", self.path(folder),
                       "--checkpoint-every", 5, "--metrics", metrics, *flags)
            return self.metrics("m.jsonl")[-1]["loss"]
        whole = last_loss(2, 10, "--lr", "0.01", folder="whole")
        last_loss(2, 5, "--lr", "0.01")
        kept = last_loss(2, 10)
        self.assertEqual(kept, whole)
        last_loss(2, 5, "--lr", "0.01", folder="other")
        self.assertNotEqual(last_loss(2, 10, "--lr", "0.001", folder="other"), whole)

    def test_keep_last(self):
        self.train(2, "wordvec", "--steps", 6, "--checkpoint-dir", self.path("run"),
                   "--checkpoint-every", 1, "--keep-last", 2)
        self.assertEqual(sorted(n for n in os.listdir(self.path("run")) if n.startswith("step")),
                         ["step-00000005", "step-00000006"])

    def test_saving_in_the_background_writes_the_same_bytes(self):
        for task in ("gpt", "wordvec"):
            for flags in ([], ["--async-save"]):
                self.train(2, task, "--steps", 12, "--checkpoint-dir", self.path(task + "".join(flags)),
                           "--checkpoint-every", 3, "--keep-last", 2, "--keep-every", 6, *flags)
            runs = [self.path(task), self.path(task + "--async-save")]
            names = [sorted(n for n in os.listdir(run) if n.startswith("step")) for run in runs]
            self.assertEqual(names[0], ["step-00000006", "step-00000009", "step-00000012"])
            self.assertEqual(names[1], names[0])
            for name in names[0]:
                contents = [self.contents(os.path.join(run, name)) for run in runs]
                self.assertEqual(len(contents[0]), 4)
                self.assertTrue(contents[0] == contents[1], f"{task} {name} differs")

    def contents(self, folder):
        out = {}
        for name in os.listdir(folder):
            with open(os.path.join(folder, name), "rb") as file:
                out[name] = file.read()
        return out


if __name__ == "__main__":
    unittest.main()
