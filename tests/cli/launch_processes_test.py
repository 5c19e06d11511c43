"""Nothing stays behind: process groups, orphans, a launcher that is killed."""

import ctypes
import os
import signal
import sys
import unittest

from launch_harness import LauncherTest, is_alive, publish

# A process that SIGTERM does not end.
STUBBORN = "import os, signal, sys, time\n" \
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" \
    "open(sys.argv[1] + '.part', 'w').write(str(os.getpid()))\n" \
    "os.rename(sys.argv[1] + '.part', sys.argv[1])\n" \
    "time.sleep(600)\n"


class Processes(LauncherTest):
    def pids(self, *names):
        return [int(text) for text in self.wait_for_files(*names)]

    def test_bl71_a_wrapped_trainer_ends_with_its_shell(self):
        trainer = self.script(f'''
{publish("$$", f"{self.dir}/trainer-$RANK")}
if [ $RANK = 1 ]; then
  while [ ! -e {self.path("trainer-0")} ]; do sleep 0.01; done
  exit 3
fi
sleep 600 & wait
''', "trainer")
        code, _, err = self.launch("-n", 2, "sh", "-c", f"{trainer} || exit 4; true")
        self.assertEqual(code, 4, err)
        self.assertFalse(is_alive(self.pids("trainer-0")[0]))

    def test_bl71_children_of_the_failed_rank_end_too(self):
        worker = self.script(f'''
(trap "" TERM; {publish("$(exec sh -c 'echo $PPID')", f"{self.dir}/child")} while :; do sleep 0.05; done) &
while [ ! -e {self.dir}/child ]; do sleep 0.01; done
exit 8
''')
        code, _, _ = self.launch("-n", 1, "--grace", "0.2", worker)
        self.assertEqual(code, 8)
        self.assertFalse(is_alive(self.pids("child")[0]))

    def test_bl71_a_process_in_a_session_of_its_own_ends_after_a_failure(self):
        worker = self.script(f'''
setsid {sys.executable} -c "{STUBBORN}" {self.dir}/detached &
while [ ! -e {self.dir}/detached ]; do sleep 0.01; done
exit 8
''')
        code, _, err = self.launch("-n", 1, "--grace", "0.2", worker)
        self.assertEqual(code, 8, err)
        self.assertFalse(is_alive(self.pids("detached")[0]))

    def test_bl71_what_a_successful_rank_leaves_in_its_group_is_ended(self):
        worker = self.script(f'''
sleep 600 &
echo $! > {self.dir}/child
exit 0
''')
        code, _, err = self.launch("-n", 1, worker)
        self.assertEqual(code, 0, err)
        self.assertFalse(is_alive(self.pids("child")[0]))
        self.assertIn(b"left behind", err)

    def test_a_detached_process_outlives_a_successful_run_and_does_not_hold_it_up(self):
        worker = self.script(f'''
setsid sh -c 'echo $$ > {self.dir}/child.part; mv {self.dir}/child.part {self.dir}/child; exec sleep 600' &
while [ ! -e {self.dir}/child ]; do sleep 0.01; done
''')
        # It holds the output pipes of the rank, not those of the launcher.
        code, _, err = self.launch("-n", 1, worker)
        self.assertEqual(code, 0, err)
        pid = self.pids("child")[0]
        self.assertTrue(is_alive(pid))
        os.kill(pid, signal.SIGKILL)

    def test_bl71_sigkill_after_the_grace_time(self):
        worker = self.script(f'exec {sys.executable} -c "{STUBBORN}" {self.dir}/up-$RANK')
        process = self.start("-n", 2, "--grace", "0.3", worker)
        pids = self.pids("up-0", "up-1")
        os.kill(pids[0], signal.SIGSEGV)
        code, _, err = self.finish(process)
        self.assertEqual(code, 128 + signal.SIGSEGV)
        self.assertIn("rank 1: stopped by tessera-run (SIGKILL)", err.decode())
        self.assertFalse(is_alive(pids[1]))

    def test_a_stopped_process_is_asked_to_end_too(self):
        worker = self.script(publish("$$", f"{self.dir}/up-$RANK") + '''
if [ $RANK = 0 ]; then kill -STOP $$; fi
exec sleep 600
''')
        process = self.start("-n", 2, worker)
        pids = self.pids("up-0", "up-1")
        self.wait_until(lambda: state(pids[0]) == "T", "a stopped rank")
        os.kill(pids[1], signal.SIGKILL)
        code, _, err = self.finish(process)
        self.assertEqual(code, 128 + signal.SIGKILL)
        self.assertIn("rank 0: stopped by tessera-run (SIGTERM)", err.decode())

    def test_bl72_kill_9_of_the_launcher_leaves_nothing(self):
        worker = self.script(f'''
trap "" TERM HUP INT
sh -c '{publish("$$", f"{self.dir}/inner-$RANK")} trap "" TERM HUP INT; while :; do sleep 0.05; done' &
{publish("$$", f"{self.dir}/outer-$RANK")}
wait
''')
        process = self.start("-n", 2, worker)
        pids = self.pids("outer-0", "outer-1", "inner-0", "inner-1")
        process.kill()
        self.wait_gone(*pids)
        self.assertEqual(self.finish(process)[0], -signal.SIGKILL)

    def test_bl72_kill_9_of_the_launchers_process_group(self):
        worker = self.script(publish("$$", f"{self.dir}/up-$RANK") + "sleep 600; true")
        process = self.start("-n", 2, worker, start_new_session=True)
        pids = self.pids("up-0", "up-1")
        os.killpg(process.pid, signal.SIGKILL)
        self.wait_gone(*pids)

    def test_bl72_the_guard_ends_with_the_launcher(self):
        worker = self.script(publish("$PPID", self.path("launcher")) + "exec sleep 600")
        process = self.start("-n", 1, worker)
        self.assertEqual(self.pids("launcher"), [process.pid])
        guards = [pid for pid in children(process.pid) if name(pid) == "tessera-guard"]
        self.assertEqual(len(guards), 1)
        process.terminate()
        self.assertEqual(self.finish(process)[0], 128 + signal.SIGTERM)
        self.assertFalse(is_alive(guards[0]))

    def test_a_start_that_fails_half_way_leaves_nothing(self):
        worker = self.script(publish("$$", f"{self.dir}/up-$RANK") + "exec sleep 600")
        code, _, err = self.launch("-n", 200, worker, preexec_fn=few_files)
        self.assertEqual(code, 125)
        self.assertIn("Too many open files", err.decode())
        self.assertIn("ulimit -n", err.decode())
        # Those that had started may not have come to write their pids; none may come to it later.
        self.wait_until(lambda: not commands_with(worker), "the end of the ranks")

    def test_bl85_a_rank_that_cannot_be_collected_is_named(self):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        allow = "import ctypes; ctypes.CDLL(None).prctl(0x59616d61, -1, 0, 0, 0)"  # PR_SET_PTRACER
        code = f"{allow}\nimport os, time\n" \
               f"open('{self.dir}/up.part', 'w').write(str(os.getpid()))\n" \
               f"os.rename('{self.dir}/up.part', '{self.dir}/up')\ntime.sleep(600)"
        process = self.start("-n", 1, "--grace", "0.1", sys.executable, "-c", code)
        pid, = self.pids("up")
        # A traced process that has died stays with its tracer until that one has collected it.
        seize = 0x4206
        self.assertEqual(libc.ptrace(seize, pid, None, None), 0, os.strerror(ctypes.get_errno()))
        process.terminate()
        exit_code, _, err = self.finish(process)
        self.assertEqual(exit_code, 125, err)
        self.assertIn(f"rank 0 (pid {pid}) could not be ended even by SIGKILL", err.decode())
        os.waitpid(pid, 0x40000000)  # __WALL


def few_files():
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))


def commands_with(word):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if word.encode() in file.read() and is_alive(pid):
                    found.append(pid)
        except OSError:
            pass
    return found


def state(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return file.read().rpartition(")")[2].split()[0]


def name(pid):
    with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
        return file.read().strip()


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(child) for child in file.read().split()]


if __name__ == "__main__":
    unittest.main(verbosity=2)
