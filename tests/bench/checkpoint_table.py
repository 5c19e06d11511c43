"""Measures our checkpoints and PyTorch's DCP side by side, with the raw ceilings, and prints the table.

Started by scripts/bench_checkpoint.sh. Interleaved: each round runs every contender once. Before each
repetition all ranks touch twice their state in memory and the kernel writes back what is dirty, so that
neither fresh pages nor the predecessor's writes decide. Only dcp.save / dcp.load themselves are timed, with
the state dict made before; ours is timed whole. One line of JSON a measurement goes to --results.
"""
import argparse
import json
import os
import shutil
import sys

import bench_report
from bench_groups import closing, start_dcp, start_ours

DCP_SAVES = ("default", "tuned1", "tuned2", "hf")


class Run:
    def __init__(self, options):
        self.options = options
        self.root = os.path.join(options.work, f"bench-{os.getpid()}")
        os.makedirs(self.root)
        self.results = {}
        self.serial = 0
        self.out = open(options.results, "w", encoding="utf-8") if options.results else None

    def add(self, workload, what, who, value):
        self.results.setdefault((workload, what, who), []).append(value)
        line = json.dumps({"workload": workload, "what": what, "who": who, "value": value})
        print(line, file=self.out or sys.stderr, flush=True)

    def fresh(self):
        self.serial += 1
        return os.path.join(self.root, f"d{self.serial}")

    def quiet(self, *groups):
        os.sync()
        for group in groups:
            group.ask("touch")

    # One save of ours into a new run folder; returns the seconds and the checkpoint.
    def our_save(self, group, kind, sync):
        self.serial += 1
        root = os.path.join(self.root, f"ours-{group.world}-{kind}-{int(sync)}")
        seconds = group.seconds("save", kind, int(sync), root, self.serial)
        return seconds, os.path.join(root, f"step-{self.serial:08d}")

    def timed_save(self, workload, what, who, group, action):
        self.quiet(group)
        seconds, path = action()
        self.add(workload, what, who, seconds)
        shutil.rmtree(path)

    def saves(self, workload, ours, dcp, sync, rounds):
        what = "save_sync" if sync else "save"
        if sync:
            for _ in range(2):  # until there is an expired one
                self.our_save(ours, "recycled", True)
        for _ in range(rounds):
            for kind in ("sharded", "full"):
                self.timed_save(workload, what, kind, ours, lambda kind=kind: self.our_save(ours, kind, sync))
            for style in DCP_SAVES:
                path = self.fresh()
                self.timed_save(workload, what, style, dcp,
                                lambda s=style, p=path: (dcp.seconds("save", s, int(sync), p), p))
            if sync:
                self.quiet(ours)
                self.add(workload, what, "recycled", self.our_save(ours, "recycled", True)[0])
            for name, words in (("raw", (0,)), ("raw_one_file", (1,)), ("raw_pieces", (0, "pieces")),
                                ("raw_hashed", (0, "hashed"))):
                path = self.fresh()
                os.mkdir(path)
                self.timed_save(workload, what, name, ours,
                                lambda w=words, p=path: (ours.seconds("raw_save", p, int(sync), *w), p))

    def loads(self, workload, what, ours, dcp, places, rounds):
        """`places`: checkpoint of ours, classic and HF directory of DCP, folder of raw files or None."""
        mine, classic, hf, raw = places
        for _ in range(rounds):
            for who, verify in (("verified", 1), ("unverified", 0)):
                self.quiet(ours)
                self.add(workload, what, who, ours.seconds("load", mine, verify))
            for who, path in (("classic", classic), ("hf", hf)):
                self.quiet(dcp)
                self.add(workload, what, who, dcp.seconds("load", who, path))
            if raw:
                self.quiet(ours)
                self.add(workload, what, "raw", ours.seconds("raw_load", raw))
                self.add(workload, what, "memcpy", ours.seconds("copy"))

    def check_equal(self, ours, dcp, places):
        """Both sides get their own numbers back, and PyTorch's reader gets the same ones out of our files."""
        for group, commands in ((ours, [("load", places[0], 1)]),
                                (dcp, [("load", "classic", places[1]), ("load", "hf", places[2]),
                                       ("load", "hf", places[0])])):
            group.ask("keep")
            for command in commands:
                group.ask("poison")
                group.ask(*command)
                if not all(answer["equal"] for answer in group.ask("check")):
                    raise AssertionError(f"{group.name}: {command} changed numbers")
            group.ask("forget")

    def keep_saves(self, ours, dcp, raw=True):
        """Saves that stay, to be loaded: unsynced, then written back."""
        _, mine = self.our_save(ours, "sharded", False)
        classic, hf = self.fresh(), self.fresh()
        dcp.ask("save", "default", 0, classic)
        dcp.ask("save", "hf", 0, hf)
        folder = None
        if raw:
            folder = self.fresh()
            os.mkdir(folder)
            ours.ask("raw_save", folder, 0, 0)
        os.sync()
        return mine, classic, hf, folder

    def start_pair(self, workload, world):
        ours = start_ours(self.options.programs, workload, world)
        _, full = self.our_save(ours, "full", False)
        dcp = start_dcp(world, full)
        size = [sum(answer["bytes"] for answer in group.ask("hello")) for group in (ours, dcp)]
        # DCP also keeps a step of 4 bytes a parameter on every rank.
        assert abs(size[0] - size[1]) < 0.001 * size[0] + 1e5, size
        return ours, dcp

    def model(self, workload):
        rounds = self.options.pairs
        with closing(*self.start_pair(workload, 2)) as (ours, dcp):
            places = self.keep_saves(ours, dcp)
            self.check_equal(ours, dcp, places)
            self.saves(workload, ours, dcp, True, rounds)
            self.saves(workload, ours, dcp, False, rounds)
            self.loads(workload, "load", ours, dcp, places, rounds)
            self.stalls(workload, ours, dcp, rounds)
            if workload == "30m":
                self.memory(workload, ours)
            self.reshard(workload, ours, dcp, places, rounds)
            if workload == "30m":
                self.training(workload, ours, dcp, max(2, rounds // 2))

    def reshard(self, workload, ours, dcp, places, rounds):
        with closing(*self.start_pair(workload, 4)) as (ours4, dcp4):
            from4 = self.keep_saves(ours4, dcp4, raw=False)
            self.loads(workload, "load_4_to_2", ours, dcp, from4, rounds)
            self.loads(workload, "load_2_to_4", ours4, dcp4, places[:3] + (None,), rounds)
        with closing(*self.start_pair(workload, 3)) as (ours3, dcp3):
            from3 = self.keep_saves(ours3, dcp3, raw=False)
        self.loads(workload, "load_3_to_2", ours, dcp, from3, rounds)

    def many(self):
        with closing(*self.start_pair("many", 2)) as (ours, dcp):
            for _ in range(max(2, self.options.pairs // 2)):
                places = {}
                for kind in ("sharded", "full"):
                    self.quiet(ours)
                    seconds, path = self.our_save(ours, kind, True)
                    self.add("many", "save", kind, seconds)
                    self.quiet(ours)
                    self.add("many", "load", kind, ours.seconds("load", path, 1))
                for style in DCP_SAVES:
                    places[style] = self.fresh()
                    self.quiet(dcp)
                    self.add("many", "save", style, dcp.seconds("save", style, 1, places[style]))
                    self.quiet(dcp)
                    reader = "hf" if style == "hf" else "classic"
                    self.add("many", "load", style, dcp.seconds("load", reader, places[style]))

    def stalls(self, workload, ours, dcp, rounds):
        """Saves in the background with nothing beside them. The first of ours makes its buffers."""
        root = os.path.join(self.root, "background")
        for index in range(rounds + 1):
            self.serial += 1
            self.quiet(ours)
            answers = ours.ask("async_save", root, self.serial)
            for part in ("seconds", "staged", "committed"):
                value = max(answer[part] for answer in answers)
                self.add(workload, f"async_{part}", "ours" if index else "ours_first", value)
            if not index:
                continue
            for style in ("default", "gcoff", "fresh"):
                path = self.fresh()
                self.quiet(dcp)
                answers = dcp.ask("async_save", style, path)
                for part in ("seconds", "staged", "committed"):
                    self.add(workload, f"async_{part}", style, max(answer[part] for answer in answers))
                shutil.rmtree(path)

    def training(self, workload, ours, dcp, rounds):
        """The same steps with and without a background save every ten."""
        steps = self.options.steps
        mine, theirs = os.path.join(self.root, "training-ours"), os.path.join(self.root, "training-dcp")
        ours.ask("train", 2, 1, mine)  # makes the buffers; first steps are slower on both sides
        dcp.ask("train", "default", 2, 1, theirs)
        for _ in range(rounds):
            for who, every in (("ours_plain", 0), ("ours", 10)):
                self.add(workload, "training", who, ours.seconds("train", steps, every, mine))
            for who, style, every in (("dcp_plain", "default", 0), ("default", "default", 10),
                                      ("gcoff", "gcoff", 10), ("fresh", "fresh", 10)):
                self.add(workload, "training", who, dcp.seconds("train", style, steps, every, theirs))

    def memory(self, workload, ours):
        """What 50 saves leave behind, and the most that one takes beside what was there before it."""
        ours.ask("forget")
        shard = sum(answer["bytes"] for answer in ours.ask("hello"))
        self.add(workload, "memory", "shards", shard)
        for kind in ("sync", "async"):
            before = ours.ask("memory")
            for index in range(51):
                self.serial += 1
                root = os.path.join(self.root, f"memory-{kind}")
                if kind == "sync":
                    ours.ask("save", "sharded", 0, root, self.serial)
                    shutil.rmtree(root)
                else:
                    ours.ask("async_save", root, self.serial)
                now = ours.ask("memory")
                if index in (0, 50):
                    self.add(workload, "memory", f"{kind}_{index}", sum(answer["proportional"] for answer in now))
                self.add(workload, "memory", f"{kind}_beside",
                         sum(b["peak"] - a["resident"] for a, b in zip(before, now)))
                before = now

    def close(self):
        shutil.rmtree(self.root, ignore_errors=True)
        if self.out:
            self.out.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", required=True)
    parser.add_argument("--work", required=True, help="folder on the disk that is measured")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="training steps of a repetition")
    parser.add_argument("--workloads", default="30m,124m,many")
    parser.add_argument("--results", help="file for one line of JSON a measurement")
    options = parser.parse_args()
    run = Run(options)
    try:
        for workload in options.workloads.split(","):
            if workload == "many":
                run.many()
            else:
                run.model(workload)
    finally:
        run.close()
        failed = bench_report.show(run.results)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
