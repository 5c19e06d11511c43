"""Runs the real tessera-run against small workers. TESSERA_RUN names the binary."""

import os
import shutil
import subprocess
import tempfile
import time
import unittest

RUN = os.environ["TESSERA_RUN"]
DEADLINE = 60.0


def clean_environment():
    """The caller's environment without what a launcher around the tests may have set."""
    names = ("RANK", "WORLD", "MASTER", "TORCHELASTIC", "OMP_NUM_THREADS", "TESSERA")
    return {k: v for k, v in os.environ.items() if not any(n in k for n in names)}


def is_alive(pid):
    """False for a process that is gone or only waits to be collected."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class LauncherTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="launch-test-")
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.dir, name)

    def script(self, text, name="worker.sh"):
        """An executable shell script in the test's folder."""
        path = self.path(name)
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n" + text)
        os.chmod(path, 0o755)
        return path

    def start(self, *args, env=None, **kwargs):
        full = clean_environment()
        full.update(env or {})
        kwargs.setdefault("stdin", subprocess.DEVNULL)
        kwargs.setdefault("stdout", subprocess.PIPE)
        kwargs.setdefault("stderr", subprocess.PIPE)
        process = subprocess.Popen([RUN, *map(str, args)], env=full, **kwargs)
        self.addCleanup(self._end, process)
        return process

    def _end(self, process):
        if process.poll() is None:
            process.kill()
            process.wait(DEADLINE)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream:
                stream.close()

    def finish(self, process):
        """(exit code, stdout, stderr) as bytes."""
        out, err = process.communicate(timeout=DEADLINE)
        return process.returncode, out, err

    def launch(self, *args, **kwargs):
        return self.finish(self.start(*args, **kwargs))

    def wait_until(self, condition, what):
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            value = condition()
            if value:
                return value
            time.sleep(0.01)
        self.fail(f"waited {DEADLINE:.0f} s for {what}")

    def wait_for_files(self, *names):
        """Contents of files that workers write by rename, in order."""
        paths = [self.path(name) for name in names]
        self.wait_until(lambda: all(map(os.path.exists, paths)), f"the files {names}")
        result = []
        for path in paths:
            with open(path, encoding="utf-8") as file:
                result.append(file.read().strip())
        return result

    def wait_gone(self, *pids):
        self.wait_until(lambda: not any(map(is_alive, pids)), f"the end of the processes {pids}")

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()


# Shell text: publishes a value under a name so that a reader never sees half of it.
def publish(value, name):
    return f'echo "{value}" > "{name}.part" && mv "{name}.part" "{name}"\n'


