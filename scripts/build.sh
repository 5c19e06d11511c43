#!/usr/bin/env bash
# Installs what is missing, then builds into build/; the programs are in build/bin/.
#
#   scripts/build.sh [--tests] [--debug] [--target NAME]... [-- CMAKE_ARGUMENT...]
#
#   --tests    also the tests
#   --debug    without optimisation and with assertions, into build-debug/
#   --target   only this target (default: all)
#
# TESSERA_LIBTORCH=FOLDER: a LibTorch of your own. TESSERA_JOBS=N: compilers at a time.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

arguments=()
targets=()
setup=()
while (($#)); do
  case "$1" in
    --tests) arguments+=(-DTESSERA_BUILD_TESTS=ON) setup=(--tests) ;;
    --debug) arguments+=(-DCMAKE_BUILD_TYPE=Debug) BUILD="${TESSERA_BUILD_DIR:-$ROOT/build-debug}" ;;
    --target)
      (($# > 1)) || die "--target needs a name"
      targets+=("$2")
      shift
      ;;
    --) shift; arguments+=("$@"); break ;;
    -h | --help) sed -n '2,/^source/{/^source/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) die "unknown argument '$1' (see --help)" ;;
  esac
  shift
done

scripts/setup.sh "${setup[@]}"
# Once configured with tests, a build folder keeps them.
if [[ ! -f "$BUILD/CMakeCache.txt" && ${#setup[@]} -eq 0 ]]; then arguments+=(-DTESSERA_BUILD_TESTS=OFF); fi
if [[ -n "${TESSERA_LIBTORCH:-}" ]]; then arguments+=("-DTESSERA_LIBTORCH=$TESSERA_LIBTORCH"); fi

log="$BUILD/configure.log"
mkdir -p "$BUILD"
if ! cmake -S "$ROOT" -B "$BUILD" -G Ninja "${arguments[@]}" >"$log" 2>&1; then
  cat "$log" >&2
  die "configuring failed: see above ($log)"
fi
grep -E 'LibTorch:' "$log" || true
jobs="$(build_jobs)"
say "building into ${BUILD#"$ROOT"/} with $jobs job(s)"
cmake --build "$BUILD" -j "$jobs" ${targets[@]+--target "${targets[@]}"} </dev/null
