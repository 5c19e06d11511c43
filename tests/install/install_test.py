"""Builds README's example in a project of its own, in one of the two ways README gives, and runs it.

    install_test.py find_package|add_subdirectory
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

SOURCE, BUILD, LIBTORCH, RUN, CMAKE = (
    os.environ[name] for name in ("TESSERA_SOURCE", "TESSERA_BUILD", "TESSERA_LIBTORCH", "TESSERA_RUN", "CMAKE"))
HERE = os.path.dirname(os.path.abspath(__file__))


def clean_environment():
    names = ("RANK", "WORLD", "MASTER", "TORCHELASTIC", "TESSERA", "CMAKE_PREFIX_PATH")
    env = {k: v for k, v in os.environ.items() if not any(n in k for n in names)}
    env.update(OMP_NUM_THREADS="1", TESSERA_TIMEOUT_SECONDS="60")
    return env


def run(*command, cwd, timeout=1700):
    result = subprocess.run(command, cwd=cwd, env=clean_environment(), stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout)
    print("$", *command, "\n" + result.stdout[-6000:], flush=True)
    assert result.returncode == 0, f"exit code {result.returncode}"
    return result.stdout


def copy_project(way, folder):
    os.makedirs(folder)
    shutil.copy(os.path.join(HERE, way, "CMakeLists.txt"), folder)
    shutil.copy(os.path.join(HERE, "example", "train.cc"), folder)


def build(folder, *arguments):
    output = os.path.join(folder, "build")
    run(CMAKE, "-S", folder, "-B", output, "-G", "Ninja", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", *arguments, cwd=folder)
    run(CMAKE, "--build", output, "-j", "2", "--target", "train", cwd=folder)
    return output


def command_of(output, source):
    with open(os.path.join(output, "compile_commands.json"), encoding="utf-8") as file:
        return next(entry["command"] for entry in json.load(file) if entry["file"].endswith(source))


def find_package(folder):
    prefix = os.path.join(folder, "prefix")
    run(CMAKE, "--install", BUILD, "--prefix", prefix, cwd=folder)
    installed = {os.path.relpath(os.path.join(top, name), prefix)
                 for top, _, names in os.walk(prefix) for name in names}
    for wanted in ("bin/tessera-run", "bin/tessera-ckpt", "bin/tessera-train", "include/tessera/tessera.h"):
        assert wanted in installed, f"{wanted} is not installed: {sorted(installed)}"
    foreign = [name for name in installed if re.search(r"gtest|gmock|_test|train_base", name)]
    assert not foreign, f"the installation holds {foreign}"
    project = os.path.join(folder, "project")
    copy_project("find_package", project)
    return build(project, f"-DCMAKE_PREFIX_PATH={prefix}"), os.path.join(prefix, "bin", "tessera-run")


def add_subdirectory(folder):
    project = os.path.join(folder, "project")
    copy_project("add_subdirectory", project)
    os.symlink(SOURCE, os.path.join(project, "tessera"))
    output = build(project, f"-DTESSERA_LIBTORCH={LIBTORCH}")
    targets = run(CMAKE, "--build", output, "--target", "help", cwd=folder)
    for unwanted in ("tessera-train", "layout_test", "gtest"):
        assert unwanted not in targets, f"an embedding project gets the target {unwanted}"
    for flag in ("-Werror", "-Wshadow"):
        assert flag not in command_of(output, "project/train.cc"), f"an embedding project gets {flag}"
    assert "-Werror" not in command_of(output, "fsdp/wrap.cc"), "warnings of Tessera break an embedding build"
    return output, RUN


def steps_of(text):
    return [int(step) for step in re.findall(r"step (\d+) loss ", text)]


def losses_of(text):
    return [float(loss) for loss in re.findall(r"loss (\S+)", text)]


def check_program(program, launcher, folder):
    """Trains on 2 ranks, loses the last checkpoint, resumes on 3, ends without a launcher."""
    checkpoints = os.path.join(folder, "runs", "example")
    output = run(launcher, "--nproc", "2", "--", program, cwd=folder)
    assert steps_of(output) == list(range(1, 61)), steps_of(output)
    losses = losses_of(output)
    assert losses[-1] < 0.7 * losses[0], losses
    saved = sorted(name for name in os.listdir(checkpoints) if name.startswith("step-"))
    assert saved == ["step-00000020", "step-00000040", "step-00000060"], saved
    shutil.rmtree(os.path.join(checkpoints, "step-00000060"))
    output = run(launcher, "--nproc", "3", "--", program, cwd=folder)
    assert steps_of(output) == list(range(41, 61)), steps_of(output)
    assert losses_of(output)[0] < 0.8 * losses[0], "the resumed run starts anew"
    shutil.rmtree(os.path.join(checkpoints, "step-00000060"))
    output = run(program, cwd=folder)
    assert steps_of(output) == list(range(41, 61)), steps_of(output)


def main(way):
    folder = tempfile.mkdtemp(prefix="install-test-")
    try:
        output, launcher = {"find_package": find_package, "add_subdirectory": add_subdirectory}[way](folder)
        check_program(os.path.join(output, "train"), launcher, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
