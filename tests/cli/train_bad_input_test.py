"""Bad input: one clear message, the documented code, nothing lost."""

import os
import subprocess
import unittest

from train_harness import BAD_USAGE, FAILED, RUN, TRAIN, TrainTest


class BadInput(TrainTest):
    def refused(self, ranks, task, *flags, code=BAD_USAGE, **kwargs):
        """The one message of a run that is refused."""
        out, err = self.train(ranks, task, *flags, code=code, **kwargs)
        return self.one_message(err)

    def one_message(self, err):
        # The launcher repeats the last lines of the rank that failed after its report.
        spoken = err.split("tessera-run: first failure")[0]
        self.assertEqual(spoken.count("tessera-train: "), 1, err)
        self.assertNotIn("Exception raised from", err)
        return spoken

    def test_missing_text(self):
        for ranks in (0, 2):
            missing = self.path("nowhere.txt")
            self.assertIn(f"--data {missing}: no such file", self.refused(ranks, "gpt", data=missing))

    def test_empty_text(self):
        empty = self.write("empty.txt", "")
        self.assertIn(f"--data {empty}: the text is empty", self.refused(2, "wordvec", data=empty))

    def test_folder_without_files(self):
        folder = self.path("folder")
        os.mkdir(folder)
        self.assertIn(folder, self.refused(0, "gpt", data=folder))

    def test_text_too_short(self):
        short = self.write("short.txt", "0123456789abcdef")
        self.assertIn(f"--data {short}", self.refused(2, "gpt", data=short))
        self.assertIn(f"--data {short}", self.refused(0, "wordvec", data=short))

    def test_text_missing_on_one_rank_only(self):
        command = f'exec {TRAIN} gpt --data "{self.data}$RANK"'
        os.link(self.data, self.data + "0")
        code, _, err = self.finish(self.start_process([RUN, "-n", 2, "--", "sh", "-c", command]))
        self.assertEqual(code, BAD_USAGE, err)
        message = self.one_message(err)
        self.assertIn(self.data + "1: no such file", message)
        self.assertIn("(on rank 1)", message)

    def test_unknown_flag(self):
        for ranks in (0, 2):
            self.assertIn("--colour", self.refused(ranks, "gpt", "--colour", "red"))

    def test_plain_needs_one_rank(self):
        self.assertIn("--plain", self.refused(2, "gpt", "--plain"))

    def test_metrics_in_a_missing_folder(self):
        path = self.path("no/m.jsonl")
        self.assertIn(path, self.refused(2, "gpt", "--metrics", path, code=FAILED))

    def test_metrics_over_another_file(self):
        self.assertIn(self.data, self.refused(2, "gpt", "--metrics", self.data))
        with open(self.data, encoding="utf-8") as file:
            self.assertGreater(len(file.read()), 1000)

    def test_checkpoint_folder_that_cannot_be_made(self):
        path = self.data + "/checkpoints"
        message = self.refused(2, "gpt", "--checkpoint-dir", path, "--steps", 2)
        self.assertIn(path, message)

    def test_world_size_without_rank(self):
        process = self.start_process([TRAIN, "gpt", "--data", self.data], {"WORLD_SIZE": "2"})
        code, _, err = self.finish(process)
        self.assertEqual(code, BAD_USAGE, err)
        self.assertIn("RANK", self.one_message(err))

    def test_lost_output_is_a_failure(self):
        for flags in (["--bench"], ["--help"]):
            with open("/dev/full", "w") as full:
                done = subprocess.run([TRAIN, "wordvec", "--data", self.data, "--steps", "2", *flags],
                                      stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
            self.assertEqual(done.returncode, FAILED, done.stderr)
            self.assertIn("could not be written", self.one_message(done.stderr))

    def test_final_file_that_cannot_be_written(self):
        path = self.path("no/final.safetensors")
        self.assertIn(path, self.refused(2, "gpt", "--steps", 2, "--save-final", path))


class OtherRun(BadInput):
    """A checkpoint that does not belong to the run that is asked for."""

    def setUp(self):
        super().setUp()
        self.root = self.path("run")
        self.train(2, "gpt", "--steps", 3, "--checkpoint-dir", self.root)
        self.before = self.content()

    def content(self):
        names = []
        for folder, _, files in os.walk(self.root):
            for name in files:
                path = os.path.join(folder, name)
                names.append((path, os.path.getsize(path), os.stat(path).st_mtime_ns))
        return sorted(names)

    def refuses(self, said, *flags, task="gpt", code=BAD_USAGE, **kwargs):
        message = self.refused(2, task, "--steps", 6, "--checkpoint-dir", self.root, *flags,
                               code=code, **kwargs)
        for text in said:
            self.assertIn(text, message)
        self.assertEqual(self.content(), self.before)

    def test_other_seed(self):
        self.refuses(["seed is 2 and was 1", "--no-resume"], "--seed", 2)

    def test_other_text(self):
        self.refuses(["text is"], data=self.write("other.txt", "another text. " * 1000))

    def test_other_context(self):
        self.refuses(["--context is 8 and was 16"], "--context", 8)

    def test_other_width(self):
        self.refuses(["blocks.0.qkv.weight"], "--width", 32, code=FAILED)

    def test_other_task(self):
        self.refuses(["task is wordvec and was gpt"], task="wordvec")

    def test_other_optimizer(self):
        self.refuses(["--optimizer is adagrad and was adamw"], "--optimizer", "adagrad")
        self.refuses(["--optimizer is adam and was adamw"], "--optimizer", "adam")

    def test_other_heads(self):
        self.refuses(["--heads is 4 and was 2"], "--heads", 4)


# Its cases are those of the class itself.
for _name in [n for n in dir(BadInput) if n.startswith("test_")]:
    setattr(OtherRun, _name, None)


if __name__ == "__main__":
    unittest.main()
