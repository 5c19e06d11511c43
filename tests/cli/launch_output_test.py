"""What the ranks print: whole lines, prefixes, log files, filters, nothing lost."""

import collections
import os
import pty
import re
import subprocess
import sys
import time
import unittest

from launch_harness import DEADLINE, RUN, LauncherTest, clean_environment, publish

QUIET = {"OMP_NUM_THREADS": "1"}


class Output(LauncherTest):
    def python(self, options, text, nproc=2, **kwargs):
        kwargs.setdefault("env", QUIET)
        return self.launch("-n", nproc, *options, sys.executable, "-c", text, **kwargs)

    def test_bl75_many_long_lines_written_in_parts(self):
        text = """
import os, sys
rank = os.environ["RANK"]
for fd in (1, 2):
    pending = []
    for i in range(10000):
        line = f"{fd} {rank} {i} ".encode() + bytes([97 + i % 26]) * (i % 400) + b"\\n"
        half = len(line) // 2
        pending += [line[:half], line[half:]]
    data = b"".join(pending)
    for at in range(0, len(data), 1777):  # ends in the middle of lines
        os.write(fd, data[at:at + 1777])
"""
        code, out, err = self.python([], text, nproc=4)
        self.assertEqual(code, 0)
        for fd, got in ((1, out), (2, err)):
            seen = collections.defaultdict(list)
            for line in got.decode().splitlines():
                match = re.fullmatch(r"\[rank (\d)\] (\d) (\d) (\d+) ([a-z]*)", line)
                self.assertIsNotNone(match, line[:200])
                prefix, which, rank, index, rest = match.groups()
                self.assertEqual((prefix, which), (rank, str(fd)))
                self.assertEqual(rest, chr(97 + int(index) % 26) * (int(index) % 400))
                seen[rank].append(int(index))
            for rank in "0123":
                self.assertEqual(seen[rank], list(range(10000)))

    def test_bl75_both_streams_into_one_pipe_keep_their_lines(self):
        text = """
import os
for i in range(3000):
    for fd in (1, 2):
        line = (str(fd) * (1 + i * 7 % 9000) + "\\n").encode()
        while line: line = line[os.write(fd, line):]
"""
        code, out, _ = self.python([], text, stderr=subprocess.STDOUT)
        self.assertEqual(code, 0)
        lines = collections.Counter()
        for line in out.decode().splitlines():
            self.assertRegex(line[:10], r"^\[rank [01]\] ")
            self.assertEqual(len(set(line[9:])), 1)
            lines[line] += 1
        self.assertEqual(sum(lines.values()), 4 * 3000)
        self.assertEqual(len(lines), 4 * len({i * 7 % 9000 for i in range(3000)}))

    def test_bl75_last_line_without_end(self):
        code, out, _ = self.python([], "import sys; sys.stdout.write('a\\nend')")
        self.assertEqual(code, 0)
        self.assertEqual(sorted(out.splitlines(keepends=True)),
                         [b"[rank 0] a\n", b"[rank 0] end\n", b"[rank 1] a\n", b"[rank 1] end\n"])

    def test_bl75_output_of_a_rank_that_crashes_is_complete(self):
        text = """
import os
os.write(1, b"x" * 59000 + b"\\n"); os.write(2, b"y" * 59000 + b"\\n"); os.kill(os.getpid(), 9)
"""
        code, out, err = self.python([], text, nproc=1)
        self.assertEqual(code, 137)
        self.assertEqual(out, b"[rank 0] " + b"x" * 59000 + b"\n")
        self.assertIn(b"[rank 0] " + b"y" * 59000 + b"\n", err)

    def test_bl75_binary_output_passes(self):
        data = bytes(range(256)) * 500
        text = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 500)"
        code, out, _ = self.python(["--log-dir", self.path("logs"), "--console", "none"], text)
        self.assertEqual((code, out), (0, b""))
        for rank in range(2):
            self.assertEqual(self.read(f"logs/rank-{rank}.stdout"), data)
        code, out, _ = self.python([], text, nproc=1)
        lines = data.split(b"\n")
        self.assertEqual(out, b"".join(b"[rank 0] " + line + b"\n" for line in lines))

    def test_one_rank_without_prefix_passes_every_byte(self):
        text = "import sys; sys.stdout.buffer.write(bytes(range(256)))"
        for more in ([], ["--log-dir", self.path("logs")]):
            code, out, _ = self.python(["--no-prefix", *more], text, nproc=1)
            self.assertEqual((code, out), (0, bytes(range(256))))

    def test_a_line_longer_than_the_memory_for_it(self):
        text = """
import os
for _ in range(20): os.write(1, b"x" * (1 << 20))
os.write(1, b"\\n")
"""
        code, out, _ = self.python([], text, nproc=1)
        self.assertEqual(code, 0)
        self.assertEqual(out.count(b"x"), 20 << 20)
        self.assertLessEqual(out.count(b"[rank 0] "), 5)

    def test_log_files_and_restarts_append_nothing_to_each_other(self):
        text = """
import os, sys
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
print("out", attempt); print("err", attempt, file=sys.stderr)
sys.exit(1 if attempt == "0" else 0)
"""
        logs = self.path("deep/logs")
        code, out, err = self.python(["--log-dir", logs, "--max-restarts", 1], text, nproc=1)
        self.assertEqual(code, 0, err)
        self.assertEqual(sorted(os.listdir(logs)),
                         ["rank-0.attempt-1.stderr", "rank-0.attempt-1.stdout", "rank-0.stderr",
                          "rank-0.stdout"])
        self.assertEqual(self.read("deep/logs/rank-0.stdout"), b"out 0\n")
        self.assertEqual(self.read("deep/logs/rank-0.attempt-1.stderr"), b"err 1\n")
        self.assertEqual(out, b"[rank 0] out 0\n[rank 0] out 1\n")

    def test_an_earlier_log_is_kept(self):
        for _ in range(2):
            self.launch("-n", 1, "--log-dir", self.path("logs"), "echo", "x")
        self.assertEqual(self.read("logs/rank-0.stdout"), b"x\nx\n")

    def test_console_filter(self):
        for text, ranks in (("all", "0123"), ("rank0", "0"), ("none", ""), ("1,3", "13"),
                            ("0-1,3", "013"), ("2", "2")):
            code, out, err = self.launch("-n", 4, "--console", text, "sh", "-c",
                                         "echo out; echo err >&2", env=QUIET)
            self.assertEqual(code, 0)
            for got, word in ((out, "out"), (err, "err")):
                self.assertEqual(sorted(got.decode().splitlines()),
                                 [f"[rank {rank}] {word}" for rank in ranks])

    def test_no_prefix_keeps_lines_whole(self):
        code, out, _ = self.python(["--no-prefix"], "import sys; sys.stdout.write('a\\nb')")
        self.assertEqual((code, sorted(out.splitlines())), (0, [b"a", b"a", b"b", b"b"]))

    def test_a_reader_that_leaves_does_not_stop_the_run(self):
        text = """
import os
try:
    for i in range(20000): os.write(1, b"line\\n" * 10)
finally:
    open(os.environ["DONE"] + os.environ["RANK"], "w").close()
"""
        env = {**clean_environment(), **QUIET, "DONE": self.path("done-")}
        run = subprocess.run(
            ["sh", "-c", '{ "$0" -n 2 "$1" -c "$2"; echo $? > "$3"; } | head -n 1', RUN,
             sys.executable, text, self.path("code")],
            env=env, timeout=DEADLINE, capture_output=True, check=True)
        self.assertRegex(run.stdout, rb"^\[rank \d\] line\n$")
        self.assertEqual(self.read("code"), b"0\n")
        self.wait_for_files("done-0", "done-1")
        self.assertEqual(run.stderr.count(b"Broken pipe"), 1)

    def test_a_slow_reader_loses_nothing(self):
        text = """
import os
for i in range(60000): os.write(1, f"{i:099d}\\n".encode())
"""
        process = self.start("-n", 1, sys.executable, "-c", text, env=QUIET)
        # More than all buffers on the way hold: the rank has to wait for the reader.
        read, count = process.stdout.fileno(), 0
        data = bytearray()
        while piece := os.read(read, 4096):
            data += piece
            count += 1
            if count % 200 == 0:
                time.sleep(0.005)
        self.assertEqual(process.wait(DEADLINE), 0)
        self.assertEqual(data.decode().split("\n"),
                         [f"[rank 0] {i:099d}" for i in range(60000)] + [""])

    def test_stop_signals_work_while_nobody_reads(self):
        worker = self.script(publish("$$", f"{self.dir}/up-$RANK") + "exec yes")
        process = self.start("-n", 2, worker)
        pids = [int(p) for p in self.wait_for_files("up-0", "up-1")]
        # The pipes fill up, then the launcher must still hear the signal.
        self.wait_until(lambda: all("pipe" in wait_channel(p) for p in pids), "full pipes")
        process.terminate()
        self.wait_gone(*pids)
        process.send_signal(15)
        self.assertEqual(process.wait(DEADLINE), 128 + 15)

    def test_a_terminal_is_handed_to_a_single_rank_without_prefix(self):
        show = "import os; print([os.isatty(f) for f in (0, 1, 2)])"
        for options, want in ((["-n", "1", "--no-prefix"], b"[False, True, True]\r\n"),
                              (["-n", "1"], b"[rank 0] [False, False, False]\r\n")):
            ours, theirs = pty.openpty()
            process = self.start(*options, sys.executable, "-c", show, env=QUIET, stdin=theirs,
                                 stdout=theirs, stderr=theirs)
            os.close(theirs)
            got = b""
            try:
                while piece := os.read(ours, 4096):
                    got += piece
            except OSError:  # how a terminal says that its other side is closed
                pass
            os.close(ours)
            self.assertEqual((process.wait(DEADLINE), got), (0, want))


def wait_channel(pid):
    try:
        with open(f"/proc/{pid}/wchan", encoding="ascii") as file:
            return file.read()
    except OSError:
        return ""


if __name__ == "__main__":
    unittest.main(verbosity=2)
