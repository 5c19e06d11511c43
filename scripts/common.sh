#!/usr/bin/env bash
# shellcheck disable=SC2034  # the scripts that source this use its variables
# Shared by the scripts; sourced, not run. Leaves the shell in the project's root folder.
set -euo pipefail
CALLED_FROM="$PWD"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ROOT="$PWD"
BUILD="${TESSERA_BUILD_DIR:-$ROOT/build}"
TORCH_VERSION="$(sed -n 's/^set(TESSERA_TORCH_VERSION "\([^"]*\)".*/\1/p' cmake/LibTorch.cmake)"
WHEEL_DIR="$ROOT/.deps/torch-$TORCH_VERSION"
VENV="$ROOT/.deps/venv"

say() { printf '%s\n' "== $*"; }
die() {
  printf '%s\n' "$(basename "$0"): $*" >&2
  exit 1
}

is_libtorch() {
  [[ -f "$1/include/torch/csrc/api/include/torch/torch.h" && -f "$1/lib/libtorch_cpu.so" ]]
}

# The LibTorch that the build will take: the user's own, else the wheel's; nothing where there is none.
find_libtorch() {
  local prefix candidate
  if [[ -n "${TESSERA_LIBTORCH:-}" ]]; then
    is_libtorch "$TESSERA_LIBTORCH" || return 1
    printf '%s\n' "$TESSERA_LIBTORCH"
    return
  fi
  local IFS=':;'
  for prefix in ${CMAKE_PREFIX_PATH:-}; do
    for candidate in "$prefix" "$prefix/torch" "$prefix/libtorch"; do
      if is_libtorch "$candidate"; then
        printf '%s\n' "$candidate"
        return
      fi
    done
  done
  is_libtorch "$WHEEL_DIR/torch" || return 1
  printf '%s\n' "$WHEEL_DIR/torch"
}

# One compiler for each core and for each 2.5 GB of memory, which is what a file with LibTorch's headers takes.
build_jobs() {
  if [[ -n "${TESSERA_JOBS:-}" ]]; then
    printf '%s\n' "$TESSERA_JOBS"
    return
  fi
  local cores kilobytes limit by_memory
  cores="$(nproc)"
  kilobytes="$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)"
  limit="$(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo max)"
  if [[ "$limit" =~ ^[0-9]+$ ]] && ((limit / 1024 < kilobytes)); then kilobytes=$((limit / 1024)); fi
  by_memory=$((kilobytes / 2500000))
  ((by_memory < 1)) && by_memory=1
  printf '%s\n' $((cores < by_memory ? cores : by_memory))
}
