"""Signals to the launcher."""

import os
import pty
import signal
import sys
import time
import unittest

from launch_harness import DEADLINE, LauncherTest, is_alive, publish

# Writes every signal it gets to a file; ends with CODE after the first stop signal, or never.
LISTENER = """
import os, signal, sys, time
folder, rank = sys.argv[1], os.environ["RANK"]
got = []
def note(number, frame):
    got.append(signal.Signals(number).name)
    with open(f"{folder}/got-{rank}.part", "w") as file: file.write(" ".join(got))
    os.rename(f"{folder}/got-{rank}.part", f"{folder}/got-{rank}")
    stop = number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    if stop and "CODE" in os.environ: os._exit(int(os.environ["CODE"].split(",")[int(rank)]))
for number in (1, 2, 3, 10, 12, 15): signal.signal(number, note)
with open(f"{folder}/up-{rank}.part", "w") as file: file.write(str(os.getpid()))
os.rename(f"{folder}/up-{rank}.part", f"{folder}/up-{rank}")
while True: time.sleep(600)
"""


class Signals(LauncherTest):
    def listeners(self, *options, code=None, nproc=2, **kwargs):
        env = {} if code is None else {"CODE": code}
        process = self.start("-n", nproc, *options, sys.executable, "-c", LISTENER, self.dir,
                             env=env, **kwargs)
        pids = self.wait_for_files(*(f"up-{rank}" for rank in range(nproc)))
        return process, [int(pid) for pid in pids]

    def got(self, rank):
        try:
            return self.read(f"got-{rank}").decode()
        except FileNotFoundError:
            return ""

    def wait_got(self, want):
        for rank in range(2):
            self.wait_until(lambda r=rank: self.got(r) == want, f"{want} at rank {rank}")

    def test_bl70_usr1_and_usr2_are_passed_on_and_the_run_goes_on(self):
        process, pids = self.listeners(code="0,0")
        process.send_signal(signal.SIGUSR1)
        self.wait_got("SIGUSR1")
        process.send_signal(signal.SIGUSR2)
        self.wait_got("SIGUSR1 SIGUSR2")
        self.assertIsNone(process.poll())
        self.assertTrue(all(map(is_alive, pids)))
        process.terminate()
        self.assertEqual(self.finish(process)[0], 0)

    def test_every_stop_signal_is_passed_on_as_it_is(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            process, _ = self.listeners(code="0,0")
            process.send_signal(number)
            code, _, err = self.finish(process)
            self.assertEqual(code, 0, err)
            self.assertEqual([self.got(0), self.got(1)], [number.name, number.name])
            self.assertNotIn("first failure", err.decode())
            for name in ("up-0", "up-1", "got-0", "got-1"):
                os.unlink(self.path(name))

    def test_ranks_that_save_and_end_with_a_code_give_the_launcher_that_code(self):
        process, _ = self.listeners(code="0,75")
        process.terminate()
        code, _, err = self.finish(process)
        self.assertEqual(code, 75)
        self.assertIn("rank 1: stopped by tessera-run (SIGTERM), exited with code 75", err.decode())

    def test_ranks_that_the_signal_ends_give_128_and_the_signal(self):
        worker = self.script(publish("$$", f"{self.dir}/up-$RANK") + "exec sleep 600")
        process = self.start("-n", 2, worker)
        self.wait_for_files("up-0", "up-1")
        process.send_signal(signal.SIGINT)
        self.assertEqual(self.finish(process)[0], 128 + signal.SIGINT)

    def test_bl69_the_grace_time_is_an_option(self):
        process, pids = self.listeners("--grace", "1.5")
        begin = time.monotonic()
        process.terminate()
        self.wait_got("SIGTERM")
        code, _, err = self.finish(process)
        self.assertGreaterEqual(time.monotonic() - begin, 1.4)
        self.assertEqual(code, 128 + signal.SIGKILL)
        self.assertIn("ranks 0-1: stopped by tessera-run (SIGKILL)", err.decode())
        self.assertFalse(any(map(is_alive, pids)))

    def test_bl69_a_second_ctrl_c_ends_the_grace_time(self):
        process, pids = self.listeners("--grace", "600")
        process.send_signal(signal.SIGINT)
        self.wait_got("SIGINT")
        process.send_signal(signal.SIGINT)
        code, _, err = self.finish(process)
        self.assertEqual(code, 128 + signal.SIGKILL)
        self.assertIn("killing", err.decode())
        self.assertFalse(any(map(is_alive, pids)))

    def test_bl71_ctrl_c_of_a_terminal_reaches_the_ranks_once(self):
        ours, theirs = pty.openpty()
        self.addCleanup(os.close, ours)

        def own_terminal():
            os.setsid()
            import fcntl
            import termios
            fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

        process, _ = self.listeners(code="0,0", stdin=theirs, preexec_fn=own_terminal)
        os.close(theirs)
        os.write(ours, b"\x03")
        code, _, err = self.finish(process)
        self.assertEqual(code, 0, err)
        self.assertEqual([self.got(0), self.got(1)], ["SIGINT", "SIGINT"])

    def test_bl72_a_closed_terminal_ends_the_run(self):
        ours, theirs = pty.openpty()

        def own_terminal():
            os.setsid()
            import fcntl
            import termios
            fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

        process, pids = self.listeners("--grace", "0.2", stdin=theirs, stdout=theirs,
                                       stderr=theirs, preexec_fn=own_terminal)
        os.close(theirs)
        os.close(ours)
        self.wait_gone(*pids)
        self.assertEqual(process.wait(DEADLINE), 128 + signal.SIGKILL)
        self.assertEqual(self.got(0), "SIGHUP")

    def test_ctrl_z_stops_the_ranks_and_fg_goes_on(self):
        worker = self.script(publish("$$", f"{self.dir}/up-$RANK") + "exec sleep 600")
        process = self.start("-n", 2, worker)
        pids = [int(pid) for pid in self.wait_for_files("up-0", "up-1")]
        process.send_signal(signal.SIGTSTP)
        self.wait_until(lambda: all(state(p) == "T" for p in [*pids, process.pid]), "a stop of all")
        process.send_signal(signal.SIGCONT)
        self.wait_until(lambda: not any(state(p) == "T" for p in pids), "ranks that run again")
        process.terminate()
        self.assertEqual(self.finish(process)[0], 128 + signal.SIGTERM)

    def test_what_was_ignored_stays_ignored(self):
        def ignore():
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)

        worker = self.script(publish("$$", f"{self.dir}/up-$RANK") + "exec sleep 600")
        process = self.start("-n", 1, worker, preexec_fn=ignore)
        self.wait_for_files("up-0")
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        code, _, err = self.finish(process)
        self.assertEqual(code, 128 + signal.SIGTERM)
        self.assertNotIn("SIGHUP", err.decode())

    def test_a_nested_launcher_passes_a_stop_on(self):
        from launch_harness import RUN
        process = self.start("-n", 1, RUN, "-n", 2, sys.executable, "-c", LISTENER, self.dir,
                             env={"CODE": "0,0"})
        self.wait_for_files("up-0", "up-1")
        process.terminate()
        code, _, err = self.finish(process)
        self.assertEqual(code, 0, err)
        self.assertEqual([self.got(0), self.got(1)], ["SIGTERM", "SIGTERM"])


def state(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return file.read().rpartition(")")[2].split()[0]


if __name__ == "__main__":
    unittest.main(verbosity=2)
