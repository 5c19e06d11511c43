#!/usr/bin/env bash
# Measures what sharding costs and gains on this machine, in one run: the unwrapped module, the sharded
# one at world size 1, and 2 ranks over shared memory, interleaved, one thread a rank.
#
#   scripts/bench_training.sh [--preset NAME] [--pairs N] [--steps N] [--batch N] [--context N] [--data PATH]
#
# Prints each round and the medians with their ratios: sharded / unwrapped step time at 1 rank (goal: at
# most 1.04), and tokens/s of 2 ranks / 1 rank (goal: at least 1.8; the ceiling on 2 cores is 2). Also
# peak resident memory a rank beside the formula that src/train/memory_report.h states.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

preset=30m pairs=5 steps=8 batch=4 context=128 data="$ROOT/include"
while (($#)); do
  case "$1" in
    --preset) preset="$2" ;;
    --pairs) pairs="$2" ;;
    --steps) steps="$2" ;;
    --batch) batch="$2" ;;
    --context) context="$2" ;;
    --data) data="$2" ;;
    *) sed -n '2,/^source/{/^source/d;s/^# \{0,1\}//;p}' "$0"; exit 2 ;;
  esac
  shift 2
done

train="$BUILD/bin/tessera-train" run="$BUILD/bin/tessera-run"
[[ -x "$train" && -x "$run" ]] || die "build first: scripts/build.sh"
cores="$(nproc)"
export OMP_NUM_THREADS=1
flags=(gpt --preset "$preset" --batch-per-rank "$batch" --context "$context" --steps "$steps" --data "$data" --bench --no-resume)

# value KEY: the number after KEY= in the bench lines of the last run.
value() { sed -n "s/.*$1=\([0-9.e+-]*\).*/\1/p" "$log" | head -n 1; }
median() { sort -g | awk '{ v[NR] = $1 } END { print (NR % 2) ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }
log="$(mktemp)"
results="$(mktemp)"
trap 'rm -f "$log" "$results"' EXIT

echo "commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown), $cores cores, $(date -u +%F), gpt $preset, $batch x $context a rank, $steps steps a run"
for ((round = 1; round <= pairs; round++)); do
  for what in plain one two; do
    case "$what" in
      plain) "$train" "${flags[@]}" --plain ;;
      one) "$train" "${flags[@]}" ;;
      two) TESSERA_BACKEND=shm "$run" --nproc 2 -- "$train" "${flags[@]}" ;;
    esac >"$log" 2>&1 || { cat "$log"; exit 1; }
    echo "$round $what $(value median_tokens_per_second) $(value peak_resident_bytes) $(value formula_bytes)" | tee -a "$results"
  done
done

# Ratios are taken round by round, so that a machine that drifts does not decide them.
column() { awk -v what="$1" -v field="$2" '$2 == what { print $field }' "$results"; }
ratio() { paste <(column "$1" 3) <(column "$2" 3) | awk '{ print $1 / $2 }' | median; }
echo
for what in plain one two; do
  echo "$what: $(column "$what" 3 | median) tokens/s, peak $(column "$what" 4 | median) bytes a rank, formula $(column "$what" 5 | median)"
done
echo "step time, sharded / unwrapped at 1 rank: $(ratio plain one)   (goal: at most 1.04)"
echo "tokens/s, 2 ranks / 1 rank sharded: $(ratio two one)   (goal: at least 1.8, ceiling 2)"
echo "tokens/s, 2 ranks / unwrapped: $(ratio two plain)"
