"""Interrupts a run again and again, resumes it on another number of ranks, and compares every loss with
the uninterrupted run on one rank. Arguments: tessera-run, checkpoint_worlds, tessera-ckpt."""
import os
import subprocess
import sys
import tempfile

RUN, PROGRAM, CKPT = sys.argv[1:4]


def start(world, directory, kind, optimizer, steps, backend="auto", expect=0):
    environment = dict(os.environ, TESSERA_BACKEND=backend, TESSERA_TIMEOUT_SECONDS="60", OMP_NUM_THREADS="1")
    done = subprocess.run([RUN, "--nproc", str(world), "--", PROGRAM, directory, kind, optimizer, str(steps)],
                          capture_output=True, text=True, timeout=120, env=environment)
    assert (done.returncode == 0) == (expect == 0), (done.returncode, done.stdout, done.stderr)
    losses, notes = {}, []
    for line in done.stdout.splitlines():
        text = line.split("] ", 1)[-1]
        parts = text.split()
        if text.startswith("note "):
            notes.append(text[5:])
        elif len(parts) == 2 and parts[0].isdigit():
            losses[int(parts[0])] = float(parts[1])
    return losses, notes, done.stderr


def verify(directory):
    done = subprocess.run([CKPT, "verify", directory], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def compare(actual, expected, what):
    assert actual, what
    for step, loss in actual.items():
        assert abs(loss - expected[step]) <= 1e-10 * abs(expected[step]), (what, step, loss, expected[step])


def main():
    for optimizer in ("adagrad", "adam"):
        with tempfile.TemporaryDirectory() as root:
            whole, _, _ = start(1, root + "/whole", "sharded", optimizer, 12)
            assert sorted(whole) == list(range(12))
            # Save at 2, resume at 3, at 1, at 4; the kinds change on the way.
            run = root + "/run"
            for steps, world, kind, backend in ((3, 2, "sharded", "auto"), (6, 3, "full", "gloo"),
                                                (8, 1, "sharded", "single"), (12, 4, "full", "shm")):
                losses, notes, _ = start(world, run, kind, optimizer, steps, backend)
                compare(losses, whole, (optimizer, steps, world))
                verify(run)
                if steps > 3:
                    assert any("converted from kind" in note for note in notes), notes
            # The same number of ranks, interrupted: bit-equal.
            again = root + "/again"
            start(2, again, "local", optimizer, 5)
            resumed, _, _ = start(2, again, "local", optimizer, 12)
            straight, _, _ = start(2, root + "/straight", "local", optimizer, 12)
            assert resumed == {step: straight[step] for step in range(5, 12)}, (resumed, straight)
            # A local checkpoint at another world size names both.
            _, _, errors = start(3, again, "local", optimizer, 13, expect=1)
            assert "saved by 2 ranks" in errors and "loaded by 3" in errors, errors
    print("ok")


main()
