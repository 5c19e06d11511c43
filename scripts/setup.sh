#!/usr/bin/env bash
# Installs what a build needs and this machine lacks: Debian packages, and LibTorch from the torch
# wheel into .deps/. Does nothing where everything is in place.
#
#   scripts/setup.sh [--tests] [--ci]
#
#   --tests   also what the tests use: GoogleTest, Open MPI, Python's safetensors, CUDA's headers
#   --ci      also what .ci/run uses
#
# TESSERA_LIBTORCH=FOLDER, or a LibTorch in CMAKE_PREFIX_PATH, is used instead of the wheel.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# The packages that libtorch_cpu.so of this wheel is linked against, at the versions it names.
CUDA_RUNTIME=(nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85)
# What torchrun imports, and what reads FULL checkpoints in the tests.
TEST_PYTHON=(safetensors numpy typing_extensions sympy networkx jinja2 fsspec filelock 'setuptools<82')

with_tests=0
with_ci=0
for argument in "$@"; do
  case "$argument" in
    --tests) with_tests=1 ;;
    --ci) with_tests=1 with_ci=1 ;;
    -h | --help) sed -n '2,/^source/{/^source/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) die "unknown argument '$argument' (see --help)" ;;
  esac
done

missing=()
need_command() { command -v "$1" >/dev/null 2>&1 || missing+=("$2"); }
need_header() {
  # Without a compiler the headers are asked for along with it.
  echo "#include <$1>" | c++ -std=c++17 -E -x c++ - >/dev/null 2>&1 || missing+=("$2")
}

find_missing() {
  missing=()
  need_command c++ g++
  need_command cmake cmake
  need_command ninja ninja-build
  need_header fmt/core.h libfmt-dev
  need_header CLI/CLI.hpp libcli11-dev
  need_header nlohmann/json.hpp nlohmann-json3-dev
  need_header xxhash.h libxxhash-dev
  if ((with_tests)) || ! find_libtorch >/dev/null; then
    need_command python3 python3
    python3 -m pip --version >/dev/null 2>&1 || missing+=(python3-pip)
  fi
  if ((with_tests)); then
    need_header gtest/gtest.h libgtest-dev
    need_header gmock/gmock.h libgmock-dev
    need_command mpirun openmpi-bin
    python3 -c 'import venv, ensurepip' >/dev/null 2>&1 || missing+=(python3-venv)
  fi
  if ((with_ci)); then need_command clang-format clang-format; fi
}

install_packages() {
  find_missing
  ((${#missing[@]} == 0)) && return
  local sudo=()
  if ! command -v apt-get >/dev/null 2>&1; then
    die "missing here: ${missing[*]} (names of Debian's packages), and there is no apt-get: install them with your package manager and run this again"
  fi
  if ((EUID != 0)); then
    command -v sudo >/dev/null 2>&1 ||
      die "missing here: ${missing[*]}, and installing them needs root: run 'apt-get install ${missing[*]}' as root, then this again"
    sudo=(sudo)
  fi
  say "installing ${missing[*]}"
  local apt=("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o Acquire::Retries=3)
  "${apt[@]}" update -q </dev/null || die "'apt-get update' failed: see above"
  "${apt[@]}" install -q -y --no-install-recommends "${missing[@]}" </dev/null ||
    die "'apt-get install ${missing[*]}' failed: see above"
  hash -r
  find_missing
  ((${#missing[@]} == 0)) || die "still missing after the installation: ${missing[*]}"
}

export PIP_ROOT_USER_ACTION=ignore
# Everything goes to a temporary folder first: an interrupted installation is never taken for a whole one.
pip_install() {
  local progress=off
  [[ -t 1 ]] && progress=on
  python3 -m pip install --disable-pip-version-check --no-input --retries 5 --progress-bar "$progress" \
    --no-warn-script-location "$@" </dev/null
}

install_wheel() {
  if [[ -n "${TESSERA_LIBTORCH:-}" ]] && ! find_libtorch >/dev/null; then
    die "TESSERA_LIBTORCH=$TESSERA_LIBTORCH is no LibTorch: it must hold include/ and lib/libtorch_cpu.so"
  fi
  find_libtorch >/dev/null && return
  [[ ! -e "$WHEEL_DIR" ]] || die "$WHEEL_DIR is damaged: remove it and run this again"
  say "installing LibTorch $TORCH_VERSION from the torch wheel (about 550 MB to download, 1.3 GB on disk)"
  rm -rf "$ROOT"/.deps/install.*  # of a run that was killed
  local space
  space="$(df -Pk "$ROOT/.deps" | awk 'NR == 2 {print $4}')"
  ((space > 3500000)) || die "LibTorch needs 3.5 GB while it is installed, $ROOT/.deps has $((space / 1000)) MB free"
  local temporary
  temporary="$(mktemp -d "$ROOT/.deps/install.XXXXXX")"
  # shellcheck disable=SC2064  # the folder of now
  trap "rm -rf '$temporary'" EXIT
  mkdir "$temporary/tmp"
  TMPDIR="$temporary/tmp" pip_install --no-deps --no-compile --target "$temporary/torch" \
    "torch==$TORCH_VERSION" "${CUDA_RUNTIME[@]}" ||
    die "pip could not install torch $TORCH_VERSION: see above; or name a LibTorch of your own with TESSERA_LIBTORCH=FOLDER"
  is_libtorch "$temporary/torch/torch" || die "the torch wheel holds no LibTorch: $temporary/torch/torch"
  mv "$temporary/torch" "$WHEEL_DIR"
  rm -rf "$temporary"
  trap - EXIT
}

install_test_python() {
  local stamp="$VENV/installed" wanted="${TEST_PYTHON[*]}"
  [[ -f "$stamp" && "$(cat "$stamp")" == "$wanted" ]] && "$VENV/bin/python" -c '' 2>/dev/null && return
  say "installing the tests' Python packages: $wanted"
  rm -rf "$VENV"
  python3 -m venv "$VENV" || die "'python3 -m venv $VENV' failed: see above"
  "$VENV/bin/python" -m pip install --disable-pip-version-check --no-input --retries 5 -q "${TEST_PYTHON[@]}" </dev/null ||
    die "pip could not install ${TEST_PYTHON[*]}: see above"
  printf '%s' "$wanted" >"$stamp"
}

mkdir -p "$ROOT/.deps"
# Two at a time would install the same twice.
exec 9>"$ROOT/.deps/lock"
flock 9
install_packages
install_wheel
if ((with_tests)); then
  install_test_python
  if [[ -z "${TESSERA_LIBTORCH:-}" ]]; then scripts/install_cuda_headers.sh; fi
fi
