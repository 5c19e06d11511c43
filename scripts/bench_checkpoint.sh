#!/usr/bin/env bash
# Measures saving and loading beside PyTorch's torch.distributed.checkpoint (DCP) on the same tensors, with
# this machine's raw ceilings, in one run; prints the table with every bar, ours and DCP's.
#
#   scripts/bench_checkpoint.sh [--quick] [--pairs N] [--workloads 30m,124m,many] [--work FOLDER] [--results FILE]
#
#   --quick      2 rounds of the 30M model and of the many small tensors
#   --pairs      rounds; in each, every contender runs once (default 5)
#   --work       folder on the disk to measure (default: the build folder)
#   --results    file for one line of JSON a measurement
#
# Exit code 1 where a bar is missed. The Python side is installed into .deps/: the torch wheel that is there for
# its LibTorch, its pure dependencies, and empty stand-ins for the CUDA libraries that it is linked against.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

pairs=5 workloads=30m,124m,many work="$BUILD" results=""
while (($#)); do
  case "$1" in
    --quick) pairs=2 workloads=30m,many ;;
    --pairs | --workloads | --work | --results)
      (($# > 1)) || die "$1 needs a value"
      declare "${1#--}=$2"
      shift
      ;;
    *) sed -n '2,/^source/{/^source/d;s/^# \{0,1\}//;p}' "$0"; exit 2 ;;
  esac
  shift
done

scripts/build.sh --target checkpoint_bench --target tessera-run -- -DTESSERA_BUILD_BENCH=ON

[[ -d "$WHEEL_DIR/torch" ]] ||
  die "the Python side needs the torch wheel in $WHEEL_DIR: run scripts/setup.sh without TESSERA_LIBTORCH"
bench_python="$ROOT/.deps/bench-venv"
packages=(safetensors numpy typing_extensions sympy networkx jinja2 fsspec filelock 'setuptools<82')
if [[ "$(cat "$bench_python/installed" 2>/dev/null)" != "${packages[*]}" ]]; then
  say "installing the Python side: ${packages[*]}"
  rm -rf "$bench_python"
  python3 -m venv "$bench_python" || die "'python3 -m venv $bench_python' failed: see above"
  "$bench_python/bin/python" -m pip install --disable-pip-version-check --no-input --retries 5 -q "${packages[@]}" \
    </dev/null || die "pip could not install ${packages[*]}: see above"
  "$bench_python/bin/python" tests/launchers/cuda_stubs.py "$WHEEL_DIR/torch/lib" "$bench_python/stubs"
  printf '%s' "${packages[*]}" >"$bench_python/installed"
fi

echo "commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown), $(nproc) cores, $(date -u +%F), 2 ranks on shm, torch $TORCH_VERSION, $pairs rounds, files in $work ($(df -PT "$work" | awk 'NR == 2 {print $2}'))"
arguments=(--programs "$BUILD/bin" --work "$work" --pairs "$pairs" --workloads "$workloads")
[[ -z "$results" ]] || arguments+=(--results "$results")
PYTHONPATH="$WHEEL_DIR" LD_LIBRARY_PATH="$bench_python/stubs" PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 \
  "$bench_python/bin/python" tests/bench/checkpoint_table.py "${arguments[@]}"
