#!/usr/bin/env bash
# Installs what is missing, builds everything and runs every test.
#
#   scripts/test.sh [CTEST_ARGUMENT...]     e.g. scripts/test.sh -R fsdp
#
# Fails where a test fails, was skipped or did not run, and, without arguments, where fewer tests ran
# than tests/expected_count says.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1:-}" in
  -h | --help) sed -n '2,/^source/{/^source/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
esac

scripts/build.sh --tests
log="$BUILD/ctest.log"
say "running the tests (output also in ${log#"$ROOT"/})"
# What a launcher around this script has set must not reach the tests.
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
status=0
ctest --test-dir "$BUILD" --output-on-failure --no-tests=error --timeout 600 -j "$(nproc)" "$@" </dev/null 2>&1 |
  tee "$log" || status=$?

ran="$(sed -n 's/^.*tests failed out of \([0-9]*\)$/\1/p' "$log" | tail -n 1)"
expected="$(cat tests/expected_count)"
if grep -qE '\*\*\*(Skipped|Not Run)|\(Disabled\)' "$log"; then
  echo "test.sh: tests were skipped or did not run: see above" >&2
  status=1
fi
if (($# == 0)) && ((${ran:-0} < expected)); then
  echo "test.sh: ${ran:-0} tests ran, at least $expected are expected (tests/expected_count)" >&2
  status=1
fi
exit "$status"
