#!/usr/bin/env python3
"""A rank that is absent, ends or is killed is an error on its peers that names it, within the deadline.

    communicator_failure_test.py PROGRAM BACKEND
"""
import json
import os
import socket
import subprocess
import sys
import time
import unittest

PROGRAM, BACKEND = sys.argv[1:3]
WORLD = 3
TIMEOUT = 3  # seconds, of every wait for a peer
ENDS_WITHIN = TIMEOUT + 8  # on a busy machine, with what is said to the store afterwards


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start(rank, port, operation, behaviour, failing_rank):
    environment = dict(
        os.environ, RANK=str(rank), WORLD_SIZE=str(WORLD), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(WORLD),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TESSERA_BACKEND=BACKEND, TESSERA_TIMEOUT_SECONDS=str(TIMEOUT),
        FAILING_RANK=str(failing_rank), OMP_NUM_THREADS="1")
    environment.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    return subprocess.Popen([PROGRAM, operation, behaviour], env=environment, stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class Failures(unittest.TestCase):
    def run_ranks(self, operation, behaviour, failing_rank=WORLD - 1, started=range(WORLD)):
        """The reports of the ranks that did not fail."""
        port = free_port()
        processes = {rank: start(rank, port, operation, behaviour, failing_rank) for rank in started}
        reports = {}
        try:
            for rank, process in processes.items():
                if rank == failing_rank:
                    continue
                # Standard input stays open, so that an absent rank stays alive meanwhile.
                process.wait(timeout=60)
                reports[rank] = json.loads(process.stdout.read())
        finally:
            for process in processes.values():
                process.stdin.close()
            for process in processes.values():
                try:
                    process.wait(timeout=30)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                process.stdout.close()
                process.stderr.close()
        return reports

    def check(self, reports, kinds, failing_rank=WORLD - 1):
        self.assertEqual(len(reports), WORLD - 1)
        for rank, report in reports.items():
            with self.subTest(rank=rank, report=report):
                self.assertIn(report["kind"], kinds)
                self.assertIn(f"rank {failing_rank}", report["text"])
                self.assertNotIn("\n", report["text"])
                self.assertLess(report["seconds"], ENDS_WITHIN)

    def test_absent_rank(self):
        for operation in ("all_gather", "reduce_scatter", "barrier", "exchange_header"):
            with self.subTest(operation=operation):
                # Whoever learns it second may see the first one's connection end instead.
                reports = self.run_ranks(operation, "absent")
                self.check(reports, {"TimeoutError", "CommError"})
                self.assertIn("TimeoutError", {report["kind"] for report in reports.values()})

    def test_killed_rank(self):
        for operation in ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "all_gather_bytes"):
            with self.subTest(operation=operation):
                self.check(self.run_ranks(operation, "kill"), {"CommError"})

    def test_rank_that_ended(self):
        self.check(self.run_ranks("exchange_header", "exit"), {"CommError"})

    def test_first_rank_which_hosts_the_store(self):
        self.check(self.run_ranks("all_gather", "kill", failing_rank=0), {"CommError"}, failing_rank=0)

    def test_rank_that_was_never_started(self):
        begin = time.monotonic()
        reports = self.run_ranks("barrier", "absent", started=range(WORLD - 1))
        self.assertLess(time.monotonic() - begin, 60)
        self.check(reports, {"TimeoutError"})


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
