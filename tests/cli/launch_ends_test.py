"""How a run ends: exit codes, the report of the first failure, restarts, the time limit."""

import os
import re
import signal
import socket
import sys
import time
import unittest

from launch_harness import LauncherTest, publish

WAIT_FOR_RANKS = 'while [ $(ls {dir} | grep -c up-) -lt {n} ]; do sleep 0.01; done\n'


class Ends(LauncherTest):
    def together(self, nproc, text):
        """A worker that goes on when all ranks have started."""
        meet = f'touch "{self.dir}/up-$RANK"\n' + WAIT_FOR_RANKS.format(dir=self.dir, n=nproc)
        return self.script(meet + text)

    def test_success_is_0_and_says_nothing(self):
        code, out, err = self.launch("-n", 3, "true", env={"OMP_NUM_THREADS": "1"})
        self.assertEqual((code, out, err), (0, b"", b""))

    def test_bl68_code_of_the_failing_rank(self):
        worker = self.together(3, 'if [ $RANK = 1 ]; then exit 7; fi; exec sleep 600')
        code, _, err = self.launch("-n", 3, worker)
        self.assertEqual(code, 7)
        self.assertRegex(err.decode(), r"first failure: rank 1 \(pid \d+\) exited with code 7\n")
        self.assertIn("ranks 0, 2: stopped by tessera-run (SIGTERM)", err.decode())

    def test_bl68_only_the_last_rank_fails_late(self):
        # Late means that the launcher has reaped the others: until then it may still stop them.
        ended = self.path("ended")
        worker = self.together(3, f'''
if [ $RANK != 2 ]; then {publish("$$", ended + "-$RANK")} exit 0; fi
for rank in 0 1; do
  while [ ! -e {ended}-$rank ]; do sleep 0.01; done
  pid=$(cat {ended}-$rank)
  while [ -e /proc/$pid ]; do sleep 0.01; done
done
exit 9
''')
        code, _, err = self.launch("-n", 3, worker)
        self.assertEqual(code, 9)
        self.assertIn("ranks 0-1: exited with code 0", err.decode())

    def test_bl68_ranks_may_end_well_before_others(self):
        worker = self.together(3, f'''
if [ $RANK = 0 ]; then {publish("x", self.path("done"))} exit 0; fi
while [ ! -e {self.path("done")} ]; do sleep 0.01; done
''')
        self.assertEqual(self.launch("-n", 3, worker)[0], 0)

    def test_bl68_bl76_signals_by_name(self):
        for number in (signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT, signal.SIGUSR1):
            name = signal.Signals(number).name
            worker = self.script(f'if [ $RANK = 2 ]; then kill -{int(number)} $$; fi; exec sleep 600')
            code, _, err = self.launch("-n", 3, worker, preexec_fn=no_core)
            self.assertEqual(code, 128 + number, err)
            self.assertRegex(err.decode(),
                             rf"first failure: rank 2 \(pid \d+\) was killed by {name}\n")
            self.assertIn("ranks 0-1: stopped by tessera-run (SIGTERM)", err.decode())

    def test_bl76_consequences_are_not_the_first_failure(self):
        # Rank 1 dies, rank 0 notices and fails by itself, both long before rank 2 would end.
        worker = self.script(f'''
if [ $RANK = 1 ]; then {publish("$$", self.path("pid"))} exec sleep 600; fi
if [ $RANK = 0 ]; then
  while [ ! -e {self.path("pid")} ]; do sleep 0.01; done
  pid=$(cat {self.path("pid")})
  kill -STOP $PPID; kill -KILL $pid
  while grep -q "^State:.[^Z]" /proc/$pid/status; do sleep 0.01; done
  (sleep 0.2; kill -CONT $PPID) &
  exit 3
fi
exec sleep 600
''')
        code, _, err = self.launch("-n", 3, worker)
        self.assertEqual(code, 128 + signal.SIGKILL, err)
        self.assertRegex(err.decode(), r"first failure: rank 1 \(pid \d+\) was killed by SIGKILL")
        self.assertIn("rank 0: exited with code 3", err.decode())

    def test_bl76_last_lines_of_standard_error(self):
        worker = self.together(2, '''
if [ $RANK = 1 ]; then
  for i in $(seq 1 50); do echo "trace $i" >&2; done
  printf 'no line end' >&2
  exit 5
fi
exec sleep 600
''')
        code, _, err = self.launch("-n", 2, "--console", "none", worker)
        self.assertEqual(code, 5)
        report = [line for line in err.decode().splitlines() if line.startswith("    | ")]
        self.assertEqual(report, [f"    | trace {i}" for i in range(32, 51)] + ["    | no line end"])
        self.assertEqual(err.decode().count("first failure"), 1)

    def test_a_rank_that_ends_well_when_asked_is_no_failure(self):
        worker = self.script(f'''
if [ $RANK = 0 ]; then
  while [ ! -e {self.path("ready")} ]; do sleep 0.01; done
  exit 6
fi
trap 'exit 0' TERM
{publish("x", self.path("ready"))}
while :; do sleep 0.05; done
''')
        code, _, err = self.launch("-n", 2, worker)
        self.assertEqual(code, 6)
        self.assertIn("rank 1: stopped by tessera-run (SIGTERM), exited with code 0", err.decode())

    def test_time_limit_is_124(self):
        begin = time.monotonic()
        code, _, err = self.launch("-n", 2, "--timeout", "0.5", "sleep", "600")
        self.assertEqual(code, 124)
        self.assertIn("time limit", err.decode())
        self.assertIn("ranks 0-1: stopped by tessera-run (SIGTERM)", err.decode())
        self.assertGreaterEqual(time.monotonic() - begin, 0.5)

    def test_time_limit_does_not_touch_a_run_that_ends_in_time(self):
        self.assertEqual(self.launch("-n", 2, "--timeout", 600, "true")[0], 0)


class Restarts(LauncherTest):
    def worker(self):
        return self.script(f'''
attempt=$TORCHELASTIC_RESTART_COUNT
echo "$MASTER_PORT $TORCHELASTIC_RUN_ID" > {self.dir}/run-$attempt-$RANK
while [ $(ls {self.dir} | grep -c "^run-$attempt-") -lt 2 ]; do sleep 0.01; done
if [ $RANK = 1 ] && [ $attempt -lt $FAILING ]; then echo "attempt $attempt" >&2; exit $((20 + attempt)); fi
if [ $attempt -lt $FAILING ]; then exec sleep 600; fi
exit 0
''')

    def test_bl79_all_ranks_restart_together(self):
        code, _, err = self.launch("-n", 2, "--max-restarts", 2, self.worker(),
                                   env={"FAILING": "2"})
        self.assertEqual(code, 0, err)
        runs = sorted(name for name in os.listdir(self.dir) if name.startswith("run-"))
        self.assertEqual(runs, [f"run-{a}-{r}" for a in range(3) for r in range(2)])
        ports, ids = zip(*(self.read(name).decode().split() for name in runs))
        self.assertEqual(len(set(ids)), 1)
        for attempt in range(3):
            self.assertEqual(ports[2 * attempt], ports[2 * attempt + 1])
        self.assertIn("restart 2 of 2", err.decode())

    def test_bl79_gives_up_with_the_last_failures_code(self):
        code, _, err = self.launch("-n", 2, "--max-restarts", 1, self.worker(),
                                   env={"FAILING": "2"})
        self.assertEqual(code, 21, err)
        self.assertFalse(os.path.exists(self.path("run-2-0")))
        # The report of an attempt has the lines of that attempt.
        self.assertEqual(re.findall(r"    \| (.*)", err.decode()), ["attempt 0", "attempt 1"])

    def test_bl79_a_stop_signal_is_not_answered_by_a_restart(self):
        worker = self.script(publish("x", f"{self.dir}/up-$RANK") + "exec sleep 600")
        process = self.start("-n", 2, "--max-restarts", 5, worker)
        self.wait_for_files("up-0", "up-1")
        process.terminate()
        code, _, err = self.finish(process)
        self.assertEqual(code, 128 + signal.SIGTERM)
        self.assertNotIn("restart", err.decode())


class Ports(LauncherTest):
    CONNECT = """
import os, socket
socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 10).close()
print(os.environ["MASTER_PORT"])
"""

    def test_bl73_eight_launchers_at_once(self):
        hold = self.CONNECT + f"""
open("{self.dir}/" + os.environ["RUN"] + "-" + os.environ["RANK"], "w").close()
import time
while len(os.listdir("{self.dir}")) < 16: time.sleep(0.01)
"""
        runs = [self.start("-n", 2, "--no-prefix", sys.executable, "-c", hold, env={"RUN": str(i)})
                for i in range(8)]
        ports = set()
        for run in runs:
            code, out, err = self.finish(run)
            self.assertEqual(code, 0, err)
            self.assertEqual(len(set(out.split())), 1)
            ports.update(out.split())
        self.assertEqual(len(ports), 8)

    def test_bl73_a_named_port_can_be_taken_again_at_once(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        for _ in range(3):
            code, out, err = self.launch("-n", 2, "--master-port", port, "--no-prefix",
                                         sys.executable, "-c", self.CONNECT)
            self.assertEqual((code, set(out.split())), (0, {str(port).encode()}), err)

    def test_bl73_an_occupied_port_is_named(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            code, _, err = self.launch("-n", 2, "--master-port", port, "true")
        self.assertEqual(code, 125)
        self.assertIn(f"127.0.0.1 port {port}: Address already in use", err.decode())


def no_core():
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    unittest.main(verbosity=2)
