"""Sharded training gives the numbers of the unwrapped module, on any number of ranks."""

import unittest

from train_harness import SMALL, TrainTest, read_safetensors, relative_distance

STEPS = 20


class Equality(TrainTest):
    def run_once(self, name, ranks, task, optimizer, *flags, **kwargs):
        self.train(ranks, task, "--optimizer", optimizer, "--steps", STEPS,
                   "--metrics", self.path(name + ".jsonl"),
                   "--save-final", self.path(name + ".safetensors"), *flags, **kwargs)

    def same_parameters(self, name, reference, tolerance):
        mine = read_safetensors(self.path(name + ".safetensors"))
        theirs = read_safetensors(self.path(reference + ".safetensors"))
        self.assertEqual(list(mine), list(theirs))
        for key, (dtype, shape, values) in theirs.items():
            self.assertEqual(mine[key][:2], (dtype, shape))
            self.assertLess(relative_distance(mine[key][2], values), tolerance, key)

    def same_losses(self, name, reference, tolerance):
        mine, theirs = self.losses(name + ".jsonl"), self.losses(reference + ".jsonl")
        self.assertEqual(len(theirs), STEPS)
        for step, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            self.assertLessEqual(abs(a - b), tolerance * abs(b), f"step {step + 1}")

    def matches_the_unwrapped_module(self, task, optimizer):
        self.run_once("plain", 0, task, optimizer, "--plain")
        self.run_once("one", 0, task, optimizer)
        self.assertEqual(self.losses("plain.jsonl"), self.losses("one.jsonl"))
        self.assertEqual(self.bytes_of("plain.safetensors"), self.bytes_of("one.safetensors"))
        first, last = self.losses("plain.jsonl")[0], self.losses("plain.jsonl")[-1]
        self.assertNotEqual(first, last)

        self.run_once("plain64", 0, task, optimizer, "--plain", "--dtype", "fp64")
        self.run_once("three64", 3, task, optimizer, "--dtype", "fp64")
        self.same_losses("three64", "plain64", 1e-9)
        self.same_parameters("three64", "plain64", 1e-8)


def add_cases():
    for task in SMALL:
        for optimizer in ("sgd", "adam", "adamw", "adagrad", "rmsprop"):
            def case(self, task=task, optimizer=optimizer):
                self.matches_the_unwrapped_module(task, optimizer)
            setattr(Equality, f"test_{task}_{optimizer}", case)


add_cases()


class Ranks(Equality):
    """Every number of ranks in single precision, and ranks that get no sample."""

    def test_single_precision_losses(self):
        for task, optimizer in (("gpt", "adamw"), ("wordvec", "adagrad")):
            self.run_once("plain", 0, task, optimizer, "--plain")
            for ranks in (1, 2, 4):
                self.run_once("sharded", ranks, task, optimizer)
                self.same_losses("sharded", "plain", 1e-5 if ranks > 1 else 0)

    def test_ranks_without_samples(self):
        for task, optimizer in (("gpt", "adamw"), ("wordvec", "adagrad")):
            flags = ["--batch", 2, "--dtype", "fp64"]
            self.run_once("plain", 0, task, optimizer, "--plain", *flags)
            self.run_once("sharded", 4, task, optimizer, *flags)
            self.same_losses("sharded", "plain", 1e-9)
            self.same_parameters("sharded", "plain", 1e-8)

    def test_gloo(self):
        for task, optimizer in (("gpt", "adamw"), ("wordvec", "adagrad")):
            self.run_once("plain", 0, task, optimizer, "--plain", "--dtype", "fp64")
            self.run_once("gloo", 3, task, optimizer, "--dtype", "fp64",
                          env={"TESSERA_BACKEND": "gloo"})
            self.same_losses("gloo", "plain", 1e-9)
            self.same_parameters("gloo", "plain", 1e-8)

    def test_same_seed_and_ranks_are_bit_equal(self):
        for name in ("first", "second"):
            self.run_once(name, 3, "gpt", "adamw")
        self.assertEqual(self.losses("first.jsonl"), self.losses("second.jsonl"))
        self.assertEqual(self.bytes_of("first.safetensors"), self.bytes_of("second.safetensors"))

    def test_batch_per_rank_grows_with_the_ranks(self):
        flags = ["--steps", 2, "--width", 16, "--heads", 2, "--context", 16, "--batch-per-rank", 4]
        self.train(2, "gpt", *flags, "--metrics", self.path("m.jsonl"), small=False)
        self.assertEqual(self.metrics("m.jsonl")[-1]["position"], 16)


for _name in [n for n in dir(Equality) if n.startswith("test_")]:
    setattr(Ranks, _name, None)


if __name__ == "__main__":
    unittest.main()
