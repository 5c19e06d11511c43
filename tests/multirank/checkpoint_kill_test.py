"""BL-48, BL-50, BL-51, BL-52, BL-59: kills a process of a run, or all of them, at random file operations of
its saves, and starts the run again on another number of ranks and in another kind. Each start must find the newest
checkpoint whole, hold exactly the values of its step, and clear away what was left.
Arguments: tessera-run, checkpoint_kill. TESSERA_LONG_TESTS=1: 200 kills instead of 16."""
import os
import random
import subprocess
import sys
import tempfile
import time

RUN, PROGRAM = sys.argv[1:3]
KILLS = 200 if os.environ.get("TESSERA_LONG_TESTS") == "1" else 16
STEPS = 4


def start(world, directory, kind, order, timeout=60):
    environment = dict(os.environ, TESSERA_BACKEND="shm", TESSERA_TIMEOUT_SECONDS=str(timeout), OMP_NUM_THREADS="1",
                       TESSERA_TEST_KILL=order)
    done = subprocess.run([RUN, "--nproc", str(world), "--", PROGRAM, directory, kind, str(STEPS)],
                          capture_output=True, text=True, timeout=120, env=environment)
    lines = [line.split("] ", 1)[-1].split() for line in done.stdout.splitlines()]
    return done, [line for line in lines if line and line[0] in ("resumed", "saving", "saved")]


class Trail:
    """One directory of a run: what its processes said that is there."""

    def __init__(self, directory, worlds, kinds):
        self.directory, self.worlds, self.kinds = directory, worlds, kinds
        self.saved = self.begun = self.kills = self.leftovers = 0

    def go_on(self, chance):
        world, kind = chance.choice(self.worlds), chance.choice(self.kinds)
        rank = chance.randrange(world)
        # Rank 0 creates, publishes and removes; the others only write.
        operation = chance.randint(1, 50 if rank == 0 else 8)
        order = f"{rank} {chance.randint(1, STEPS - 1)} {operation} {chance.choice(('self', 'all'))}"
        done, said = start(world, self.directory, kind, order)
        what = (world, kind, order, done.returncode, done.stdout, done.stderr)
        assert said and said[0][0] == "resumed", what
        step, left = int(said[0][1]), int(said[0][2])
        assert self.saved <= step <= self.begun, (self.saved, self.begun, what)
        assert "Failure" not in done.stdout + done.stderr, what
        self.leftovers += left
        if left:
            assert done.stderr.count("removed, left by an interrupted") >= left or len(said) < 3, what
        self.saved, self.begun = step, step
        for line in said[1:]:
            if line[0] == "saved":
                self.saved = int(line[1])
            else:
                self.begun = int(line[1])
        if done.returncode:
            assert "signal 9" in done.stderr or "SIGKILL" in done.stderr, what
            self.kills += 1

    def ends_well(self):
        done, said = start(self.worlds[0], self.directory, self.kinds[0], "")
        assert done.returncode == 0, (done.stdout, done.stderr)
        assert self.saved <= int(said[0][1]) <= self.begun, (self.saved, self.begun, said)
        names = sorted(os.listdir(self.directory))
        assert len(names) == 3 and names[0] == "LATEST" and names[2].startswith("step-"), names


def one_rank_alone(root):
    """BL-59: a rank that saves alone fails by its deadline, and the launcher ends the others."""
    begin = time.monotonic()
    done, _ = start(3, root + "/alone", "sharded", "alone", timeout=3)
    assert done.returncode != 0, (done.stdout, done.stderr)
    assert "rank 1" in done.stderr and time.monotonic() - begin < 30, done.stderr
    assert not os.path.exists(root + "/alone") or not os.listdir(root + "/alone")


def main():
    chance = random.Random(48)
    with tempfile.TemporaryDirectory() as root:
        one_rank_alone(root)
        trails = [Trail(root + "/any", (2, 1, 3, 4), ("sharded", "full")), Trail(root + "/local", (2,), ("local",))]
        runs = 0
        while sum(trail.kills for trail in trails) < KILLS:
            trails[runs % 4 == 3].go_on(chance)
            runs += 1
            assert runs < 3 * KILLS
        for trail in trails:
            trail.ends_well()
        assert sum(trail.leftovers for trail in trails) > 0
        print(f"{KILLS} kills in {runs} runs, {sum(trail.leftovers for trail in trails)} leftovers cleared")


main()
