"""What reaches the program: arguments, environment, input; and wrong usage of the launcher."""

import json
import os
import subprocess
import sys
import unittest

from launch_harness import DEADLINE, RUN, LauncherTest

SHOW = """
import json, os, sys
fds = sorted(map(int, os.listdir("/proc/self/fd")))
with open(sys.argv[1] + "/rank-" + os.environ["RANK"], "w") as file:
    json.dump({"args": [os.fsencode(a).hex() for a in sys.argv[2:]],
               "env": {os.fsencode(k).hex(): os.fsencode(v).hex() for k, v in os.environ.items()},
               "stdin": sys.stdin.buffer.read().hex(),
               "fds": fds}, file)
"""


class Seen:
    def __init__(self, path):
        with open(path, encoding="ascii") as file:
            data = json.load(file)
        self.args = [bytes.fromhex(a) for a in data["args"]]
        self.env = {bytes.fromhex(k): bytes.fromhex(v) for k, v in data["env"].items()}
        self.stdin = bytes.fromhex(data["stdin"])
        self.fds = data["fds"]

    def get(self, name):
        value = self.env.get(name.encode())
        return None if value is None else value.decode()


class Arguments(LauncherTest):
    def show(self, options, args=(), nproc=2, **kwargs):
        command = ["--nproc", nproc, *options, sys.executable, "-c", SHOW, self.dir, *args]
        code, out, err = self.launch(*command, **kwargs)
        self.assertEqual((code, out), (0, b""), err)
        return [Seen(self.path(f"rank-{r}")) for r in range(nproc)], err.decode()

    def test_bl77_everything_after_the_program_name_is_the_programs(self):
        given = ["--r=16", "--help", "--n", "5", "--", "--x", "a b", "", "-n", "7", "--nproc=9"]
        for separator in ([], ["--"]):
            seen, _ = self.show(separator, given)
            self.assertEqual(len(seen), 2)
            for rank in seen:
                self.assertEqual(rank.args, [g.encode() for g in given])

    def test_bl78_values_arrive_byte_for_byte(self):
        values = ["a b", "(x2)", '"', "'", "$HOME", "=", "a=b=c", "ü€🙂", "", "*", "\\", "\n", "`id`",
                  '{"a": [1, "x y"]}', "%s", ";", os.fsdecode(b"\xff\xfe")]
        env = {f"VALUE_{i}": value for i, value in enumerate(values)}
        seen, _ = self.show([], values, env=env)
        for rank in seen:
            self.assertEqual(rank.args, [os.fsencode(v) for v in values])
            for name, value in env.items():
                self.assertEqual(rank.env[name.encode()], os.fsencode(value))

    def test_environment_is_the_contract_of_torchrun(self):
        seen, _ = self.show(["--max-restarts", "2"], nproc=3, env={"RANK": "9", "MASTER_PORT": "1"})
        for index, rank in enumerate(seen):
            want = {"RANK": index, "LOCAL_RANK": index, "ROLE_RANK": index, "WORLD_SIZE": 3,
                    "LOCAL_WORLD_SIZE": 3, "ROLE_WORLD_SIZE": 3, "GROUP_RANK": 0,
                    "GROUP_WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1",
                    "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": 0,
                    "TORCHELASTIC_MAX_RESTARTS": 2}
            self.assertEqual({k: rank.get(k) for k in want}, {k: str(v) for k, v in want.items()})
            self.assertGreater(int(rank.get("MASTER_PORT")), 1023)
        for shared in ("MASTER_PORT", "TORCHELASTIC_RUN_ID"):
            self.assertEqual(len({rank.get(shared) for rank in seen}), 1)
        again, _ = self.show([])
        self.assertNotEqual(again[0].get("TORCHELASTIC_RUN_ID"), seen[0].get("TORCHELASTIC_RUN_ID"))

    def test_bl74_omp_num_threads(self):
        cores = len(os.sched_getaffinity(0))
        for nproc in (1, 2, cores + 1):
            seen, err = self.show([], nproc=nproc)
            threads = max(1, cores // nproc)
            self.assertEqual({rank.get("OMP_NUM_THREADS") for rank in seen}, {str(threads)})
            self.assertEqual(err.count(f"OMP_NUM_THREADS={threads} "), 1, err)
        for value in ("3", ""):
            seen, err = self.show([], env={"OMP_NUM_THREADS": value})
            self.assertEqual({rank.get("OMP_NUM_THREADS") for rank in seen}, {value})
            self.assertNotIn("OMP_NUM_THREADS=", err)

    def test_bl74_cores_are_those_of_the_affinity_mask(self):
        one = {min(os.sched_getaffinity(0))}
        seen, _ = self.show([], nproc=1, preexec_fn=lambda: os.sched_setaffinity(0, one))
        self.assertEqual(seen[0].get("OMP_NUM_THREADS"), "1")

    def test_nproc_auto_is_one_rank_for_each_core(self):
        code, out, _ = self.launch("--nproc", "auto", "sh", "-c", "echo $WORLD_SIZE")
        cores = len(os.sched_getaffinity(0))
        self.assertEqual(code, 0)
        self.assertEqual(sorted(out.decode().splitlines()),
                         sorted(f"[rank {r}] {cores}" for r in range(cores)))

    def test_rank_0_alone_gets_the_standard_input(self):
        with open(self.path("input"), "wb") as file:
            file.write(b"to rank 0\n")
        with open(self.path("input"), "rb") as file:
            seen, _ = self.show([], stdin=file)
        self.assertEqual([rank.stdin for rank in seen], [b"to rank 0\n", b""])

    def test_no_descriptor_of_the_launcher_is_left_open_in_a_rank(self):
        seen, _ = self.show([])
        for rank in seen:
            # The fourth is the one that lists them.
            self.assertEqual(rank.fds, [0, 1, 2, 3])

    def test_closed_standard_streams(self):
        code = subprocess.run(
            ["sh", "-c", f'exec "$0" -n 2 sh -c "echo x; echo y >&2; exit 4" <&- >&- 2>&-', RUN],
            timeout=DEADLINE, check=False).returncode
        self.assertEqual(code, 4)


class Usage(LauncherTest):
    def check_usage(self, text, *args):
        code, out, err = self.launch(*args)
        self.assertEqual((code, out), (2, b""))
        self.assertIn(text, err.decode())
        self.assertLessEqual(err.count(b"\n"), 2)

    def test_wrong_usage_is_code_2_and_one_message(self):
        self.check_usage("--nproc", "true")
        self.check_usage("no program", "--nproc", "2")
        self.check_usage("no program", "--nproc", "2", "--")
        self.check_usage("not 'two'", "--nproc", "two", "true")
        self.check_usage("not '0'", "--nproc", "0", "true")
        self.check_usage("not '-3'", "--nproc=-3", "true")
        self.check_usage("not '3x'", "--nproc=3x", "true")
        self.check_usage("'--nprocs'", "--nprocs", "2", "true")
        self.check_usage("needs a value", "--nproc")
        self.check_usage("takes no value", "-n", "2", "--no-prefix=1", "true")
        self.check_usage("--grace", "-n", "2", "--grace", "soon", "true")
        self.check_usage("--timeout", "-n", "2", "--timeout", "-1", "true")
        self.check_usage("--master-port", "-n", "2", "--master-port", "65536", "true")
        self.check_usage("names rank 2", "-n", "2", "--console", "0-2", "true")
        self.check_usage("list of ranks", "-n", "2", "--console", "", "true")
        self.check_usage("--console", "-n", "2", "--console", "first", "true")
        self.check_usage("192.0.2.1", "-n", "2", "--master-addr", "192.0.2.1", "true")

    def test_help_names_every_option_and_exit_code(self):
        code, out, err = self.launch("--help")
        self.assertEqual((code, err), (0, b""))
        text = out.decode()
        for name in ("--nproc", "--grace", "--log-dir", "--console", "--no-prefix",
                     "--master-addr", "--master-port", "--max-restarts", "--timeout", "--version",
                     "124", "125", "126", "127", "128+S"):
            self.assertIn(name, text)
        self.assertLessEqual(max(map(len, text.splitlines())), 100)

    def test_version(self):
        code, out, err = self.launch("--version")
        self.assertEqual((code, err), (0, b""))
        self.assertRegex(out.decode(), r"^tessera-run \d+\.\d+\.\d+\n$")

    def test_missing_program_is_127(self):
        code, _, err = self.launch("-n", 2, "no-such-program-anywhere", "x")
        self.assertEqual(code, 127)
        self.assertEqual(err.count(b"\n"), 1, err)
        self.assertIn(b"'no-such-program-anywhere' was not found in PATH", err)
        code, _, err = self.launch("-n", 2, self.path("absent"))
        self.assertEqual(code, 127)
        self.assertIn(b"No such file", err)

    def test_program_in_the_current_directory_is_suggested(self):
        self.script("exit 0", "local-program")
        code, _, err = self.launch("-n", 2, "local-program", cwd=self.dir)
        self.assertEqual(code, 127)
        self.assertIn(b"'./local-program'", err)

    def test_program_that_cannot_be_executed_is_126(self):
        with open(self.path("text"), "w", encoding="ascii") as file:
            file.write("x")
        code, _, err = self.launch("-n", 2, self.path("text"))
        self.assertEqual(code, 126)
        self.assertIn(b"Permission denied", err)
        code, _, err = self.launch("-n", 2, self.dir)
        self.assertEqual(code, 126)
        self.assertIn(b"Is a directory", err)
        os.chmod(self.path("text"), 0o755)
        code, _, err = self.launch("-n", 2, self.path("text"))
        self.assertEqual(code, 126)
        self.assertIn(b"Exec format error", err)

    def test_an_exec_that_fails_is_not_restarted(self):
        with open(self.path("text"), "w", encoding="ascii") as file:
            file.write("x")
        os.chmod(self.path("text"), 0o755)
        code, _, err = self.launch("-n", 2, "--max-restarts", 3, self.path("text"))
        self.assertEqual(code, 126)
        self.assertNotIn(b"restart", err)

    def test_log_directory_that_cannot_be_made_is_125(self):
        with open(self.path("file"), "w", encoding="ascii"):
            pass
        code, _, err = self.launch("-n", 2, "--log-dir", self.path("file/logs"), "true")
        self.assertEqual(code, 125)
        self.assertIn(b"--log-dir", err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
