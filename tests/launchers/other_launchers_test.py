"""Runs a multi-rank test under another launcher than tessera-run.

    other_launchers_test.py mpirun|torchrun PROGRAM
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile

import cuda_stubs


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def clean_environment():
    names = ("RANK", "WORLD", "MASTER", "TORCHELASTIC", "TESSERA")
    env = {k: v for k, v in os.environ.items() if not any(n in k for n in names)}
    env.update(OMP_NUM_THREADS="1", TESSERA_TIMEOUT_SECONDS="60")
    return env


def run(command, env):
    result = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, timeout=240)
    print("$", *command, "\n" + result.stdout[-6000:], flush=True)
    return result.returncode, result.stdout


def mpirun(program, folder):
    """(command, environment) that runs the program on two ranks."""
    env = clean_environment()
    env.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())
    return [os.environ["MPIRUN"], "--allow-run-as-root", "--oversubscribe", "-np", "2", program], env


def torchrun(program, folder):
    packages = os.environ["TORCH_PACKAGES"]
    cuda_stubs.main(os.path.join(packages, "torch", "lib"), os.path.join(folder, "stubs"))
    env = clean_environment()
    env.update(PYTHONPATH=packages, LD_LIBRARY_PATH=os.path.join(folder, "stubs"))
    return [os.environ["VENV_PYTHON"], "-m", "torch.distributed.run", "--no-python", "--standalone",
            "--nproc-per-node", "2", program], env


def main(launcher, program):
    folder = tempfile.mkdtemp(prefix="launchers-test-")
    try:
        command, env = {"mpirun": mpirun, "torchrun": torchrun}[launcher](program, folder)
        for backend in ("shm", "gloo"):
            code, text = run(command, env | {"TESSERA_BACKEND": backend})
            assert code == 0, f"{launcher} ended with {code}"
            assert text.count("[  PASSED  ]") == 2, text.count("[  PASSED  ]")
        # They were two ranks and not two programs of one rank each: the backend of one rank refuses.
        code, text = run(command, env | {"TESSERA_BACKEND": "single"})
        assert code != 0 and "WORLD_SIZE is 2" in text, "two ranks take the backend of a single one"
        if launcher == "mpirun":
            without = {name: value for name, value in env.items() if name != "MASTER_ADDR"}
            code, text = run(command, without)
            assert code != 0 and "MASTER_ADDR" in text, "a missing MASTER_ADDR must be named"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
