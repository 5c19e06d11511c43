#!/usr/bin/env bash
# Checks Tessera on the GPUs of this machine: NCCL, sharded training against unsharded, checkpoints,
# and the ends that go wrong. One PASS or FAIL line for each check; needs no network.
#
#   scripts/gpu_check.sh [--dry-run] [BUILD_FOLDER]      (default: build)
#
#   --dry-run   prints what would run, and checks that every program is there; needs no GPU
#
# Build first: scripts/build.sh --tests -- -DTESSERA_WITH_NCCL=ON, with a LibTorch that has all of its
# CUDA libraries (TESSERA_LIBTORCH=FOLDER; pip install torch brings one).
# TESSERA_GPU_CHECK_GPUS=N uses N GPUs instead of all. Exit code: 0 all passed, 1 something failed,
# 2 wrong arguments.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

dry_run=0
for argument in "$@"; do
  case "$argument" in
    --dry-run) dry_run=1 ;;
    -h | --help) sed -n '2,/^source/{/^source/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    -*) echo "gpu_check.sh: unknown argument '$argument' (see --help)" >&2; exit 2 ;;
    /*) BUILD="$argument" ;;
    *) BUILD="$CALLED_FROM/$argument" ;;
  esac
done
bin="$BUILD/bin"
work="$(mktemp -d "${TMPDIR:-/tmp}/gpu_check.XXXXXX")"
trap 'rm -rf "$work"' EXIT
# What a launcher around this script has set must not reach the checks.
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TESSERA_BACKEND TESSERA_DEVICE
export TESSERA_TIMEOUT_SECONDS=60

failed=0
passed=0
pass() { echo "PASS $1"; passed=$((passed + 1)); }
fail() { echo "FAIL $1: $2"; failed=$((failed + 1)); }

# check NAME COMMAND...: passes when the command ends with 0. WANTED_FAILURE="text" turns it round: the
# command must fail, and say this text.
check() {
  local name="$1" log="$work/log" begin="$SECONDS" status=0 wanted="${WANTED_FAILURE:-}"
  shift
  if ((dry_run)); then
    echo "would run $name: $*" | sed "s#$bin/##g; s#$work/##g"
    return
  fi
  timeout --kill-after=10 "${TIME_LIMIT:-600}" "$@" </dev/null >"$log" 2>&1 || status=$?
  if [[ -n "$wanted" ]]; then
    if ((status != 0 && status != 124 && status != 137)) && grep -qF "$wanted" "$log"; then status=0; else status=255; fi
  fi
  if ((status == 0)); then
    pass "$name ($((SECONDS - begin)) s)"
  else
    fail "$name" "exit code $status$([[ $status == 124 || $status == 137 ]] && echo ' (took too long)' || true)"
    sed 's/^/    /' "$log" | tail -n 30
  fi
}
ranks() { # ranks BACKEND N PROGRAM...
  local backend="$1" count="$2"
  shift 2
  printf '%s\n' env "TESSERA_BACKEND=$backend" TESSERA_DEVICE=cuda "$bin/tessera-run" --nproc "$count" -- "$@"
}
check_ranks() { # check_ranks NAME BACKEND N PROGRAM...
  local name="$1" command
  shift
  mapfile -t command < <(ranks "$@")
  check "$name" "${command[@]}"
}

tests=(fsdp_training_test fsdp_programs_test fsdp_order_test fsdp_dtypes_test checkpoint_device_test)
programs=(tessera-run tessera-train tessera-ckpt runtime_report communicator_test "${tests[@]}")
for program in "${programs[@]}"; do
  [[ -x "$bin/$program" ]] || fail "programs" "$bin/$program is missing: scripts/build.sh --tests"
done
if [[ ! -f "$bin/libtessera_nccl.so" ]]; then
  if ((dry_run)); then
    echo "note: libtessera_nccl.so is not built here (TESSERA_WITH_NCCL)"
  else
    fail "programs" "$bin/libtessera_nccl.so is missing: configure with -DTESSERA_WITH_NCCL=ON"
  fi
fi
((failed == 0)) || exit 1
((dry_run)) || pass "programs"

gpus="${TESSERA_GPU_CHECK_GPUS:-1}"
if ((!dry_run)); then
  if ! line="$(TESSERA_BACKEND=nccl "$bin/runtime_report" 2>&1)" || [[ "$line" != *"device cuda:0 backend nccl"* ]]; then
    fail "device" "$line"
    exit 1
  fi
  pass "device: ${line##*$'\n'}"
  gpus="${TESSERA_GPU_CHECK_GPUS:-${line##* devices }}"
fi

worlds=(1)
((gpus > 1)) && worlds+=("$gpus")
for world in "${worlds[@]}"; do
  check_ranks "communicator, nccl, $world ranks" nccl "$world" "$bin/communicator_test"
  for test in "${tests[@]}"; do check_ranks "$test, nccl, $world ranks" nccl "$world" "$bin/$test"; done
done
for test in "${tests[@]}"; do
  check_ranks "$test, one GPU without communication" single 1 "$bin/$test"
  # Several ranks share a GPU and talk over the host: sharding on CUDA tensors, whatever the machine.
  check_ranks "$test, gloo, 2 ranks on CUDA" gloo 2 "$bin/$test"
done

# A run that is resumed ends where one that was not interrupted does, and its checkpoints verify.
data="$work/text"
if ((dry_run)); then : >"$data"; else cat include/tessera/*.h src/*/*.cc >"$data"; fi
train() { # train NAME TASK FOLDER STEPS
  check_ranks "$1" nccl "$gpus" "$bin/tessera-train" "$2" --preset tiny --data "$data" --steps "$4" \
    --checkpoint-dir "$work/$3" --checkpoint-every 4 --metrics "$work/$3.jsonl"
}
# shellcheck disable=SC2016  # for the shell that runs it
same_losses='losses() { sed -n "s/.*\"loss\":\([^,]*\),.*/\1/p" "$1"; }
paste <(losses "$1") <(losses "$2") | awk "{ d = \$1 - \$2; if (d < 0) d = -d; n++; if (NF != 2 || d > 1e-5 * \$1) bad = 1; print }
END { exit n != 8 || bad }"'
for task in gpt wordvec; do
  train "$task, 8 steps" "$task" "$task-whole" 8
  train "$task, 4 steps" "$task" "$task-parts" 4
  train "$task, resumed to 8" "$task" "$task-parts" 8
  check "$task, checkpoint verifies" "$bin/tessera-ckpt" verify "$work/$task-parts/step-00000008"
  check "$task, same losses" bash -c "$same_losses" _ "$work/$task-whole.jsonl" "$work/$task-parts.jsonl"
done

TIME_LIMIT=120
WANTED_FAILURE="start at most one rank for each device" \
  check_ranks "more ranks than GPUs are refused" nccl "$((gpus + 1))" "$bin/runtime_report"
WANTED_FAILURE="as asked" check_ranks "an exception ends the program" nccl "$gpus" "$bin/runtime_report" throw

if ((dry_run)); then
  echo "dry run: every program is there"
  exit 0
fi
echo "$passed passed, $failed failed"
((failed == 0))
