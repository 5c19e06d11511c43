#!/usr/bin/env bash
# The main job from beginning to end: builds, trains a byte-level GPT on 2 ranks, kills one of them,
# resumes from the last complete checkpoint on 3 ranks and then on 1, and says what happened.
#
#   scripts/quickstart.sh [--data PATH] [--short] [--skip-build]
#
#   --data PATH    text to train on, a file or a folder (default: LibTorch's own C++ headers)
#   --short        fewer steps
#   --skip-build   use the programs as they are
#
# Each call makes a folder of its own under runs/. Exits with 0 only when every part went as it must.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

data=""
steps=1500 every=100
build=1
while (($#)); do
  case "$1" in
    --data)
      (($# > 1)) || die "--data needs a file or a folder"
      data="$2"
      shift
      ;;
    --short) steps=300 every=20 ;;
    --skip-build) build=0 ;;
    -h | --help) sed -n '2,/^source/{/^source/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) die "unknown argument '$1' (see --help)" ;;
  esac
  shift
done
kill_after=$((steps / 3))
resume_until=$((steps * 2 / 3))

if ((build)); then
  scripts/build.sh --target tessera-run --target tessera-train --target tessera-ckpt
fi
if [[ -z "$data" ]]; then
  libtorch="$(find_libtorch)" || die "no LibTorch whose headers could be trained on: name a text with --data"
  data="$libtorch/include/torch/csrc/api/include"
fi
[[ "$data" == /* ]] || data="$CALLED_FROM/$data"
[[ -e "$data" ]] || die "--data $data: there is no such file or folder"

number=1
mkdir -p runs
until mkdir "runs/quickstart-$number" 2>/dev/null; do number=$((number + 1)); done
run="runs/quickstart-$number"
checkpoints="$run/checkpoints"
metrics="$run/metrics.jsonl"
log="$run/output.log"

train=("$BUILD/bin/tessera-train" gpt --preset tiny --data "$data" --checkpoint-dir "$checkpoints"
  --checkpoint-every "$every" --metrics "$metrics" --log-every "$((steps / 15))" --threads 1)
show() { printf '   $'; printf ' %s' "${@//"$ROOT/"/}"; printf '\n'; }

launcher=""
reader=""
stop_launcher() {
  [[ -z "$launcher" ]] || kill "$launcher" 2>/dev/null || true
}
trap stop_launcher EXIT

# Starts ranks in the background; their output goes to the terminal and the log.
start() {
  local ranks="$1" until="$2"
  show "$BUILD/bin/tessera-run" --nproc "$ranks" -- "${train[@]}" --steps "$until"
  rm -f "$run/pipe"
  mkfifo "$run/pipe"
  tee -a "$log" <"$run/pipe" &
  reader=$!
  "$BUILD/bin/tessera-run" --nproc "$ranks" -- "${train[@]}" --steps "$until" >"$run/pipe" 2>&1 </dev/null &
  launcher=$!
}

# Waits for them; the exit code is in `code`.
finish() {
  code=0
  wait "$launcher" || code=$?
  launcher=""
  wait "$reader"
  rm -f "$run/pipe"
}

steps_done() {
  local lines=0
  if [[ -f "$metrics" ]]; then lines="$(wc -l <"$metrics")"; fi
  printf '%s\n' "$lines"
}

# The step of the newest complete checkpoint: a directory gets its name when it is whole.
newest_step() {
  local name newest=0
  for name in "$checkpoints"/step-*; do
    name="${name##*/step-}"
    if [[ "$name" =~ ^[0-9]+$ ]] && ((10#$name > newest)); then newest=$((10#$name)); fi
  done
  printf '%s\n' "$newest"
}

# The process that the launcher started as this rank.
find_rank() {
  local folder
  for folder in /proc/[0-9]*; do
    if grep -qs "^PPid:[[:space:]]*$launcher\$" "$folder/status" &&
      tr '\0' '\n' <"$folder/environ" 2>/dev/null | grep -qx "RANK=$1"; then
      printf '%s\n' "${folder#/proc/}"
      return
    fi
  done
  return 1
}

# "loss" or another number of one step in a metrics file.
value_of() {
  sed -n "s/^{\"step\":$2,.*\"$3\":\\([-+0-9.eE]*\\)[,}].*/\\1/p" "$1"
}

# A number is within a relative distance of another one.
is_close() { awk -v a="$1" -v b="$2" -v r="$3" 'BEGIN {d = a - b; if (d < 0) d = -d; exit !(a != "" && b != "" && d <= r * b)}'; }

mean_loss() {
  awk -F'"loss":' -v first="$2" -v last="$3" '
    {split($0, a, /[:,]/); if (a[2] >= first && a[2] <= last) {sum += $2 + 0; ++n}} END {if (n) print sum / n}' "$1"
}

expect_resumed() {
  local ranks="$1" step="$2"
  grep -q "resumed at step $step from .*now $ranks" "$log" ||
    die "the run on $ranks rank(s) did not resume at step $step: see $log"
  [[ "$code" == 0 ]] || die "the run on $ranks rank(s) ended with code $code: see $log"
}

say "1. training on 2 ranks; rank 1 will be killed after step $kill_after"
start 2 "$steps"
deadline=$((SECONDS + 600))
until (($(steps_done) >= kill_after)) && (($(newest_step) > 0)); do
  if ! kill -0 "$launcher" 2>/dev/null; then
    finish
    die "training ended with code $code before it could be interrupted: see $log"
  fi
  ((SECONDS < deadline)) || die "training did not reach step $kill_after and a checkpoint within 10 minutes: see $log"
  sleep 0.02
done
victim="$(find_rank 1)" || die "rank 1 is not among the launcher's processes"
kill -KILL "$victim" || die "rank 1 ended before it could be killed: see $log"
echo "   *** kill -KILL $victim (rank 1) ***"
finish
[[ "$code" == 137 ]] || die "the launcher should have ended with 137 (128 + SIGKILL), not $code: see $log"
grep -q "first failure: rank 1 (pid $victim).*SIGKILL" "$log" ||
  die "the launcher did not say that rank 1 was killed: see $log"
killed_at="$(steps_done)"
((killed_at < steps)) || die "rank 1 was killed too late"
saved="$(newest_step)"
cp "$metrics" "$run/metrics-before-the-kill.jsonl"
echo "   the launcher ended with code $code; the last complete checkpoint is of step $saved"

say "2. resuming on 3 ranks"
start 3 "$resume_until"
finish
expect_resumed 3 "$saved"
excerpt="$("$BUILD/bin/tessera-ckpt" inspect "$checkpoints" |
  grep -E '^kind|^[0-9]+ tensors|(state\.|model\.)tokens\.weight')" || die "$checkpoints cannot be inspected: see above"
first="$(value_of "$metrics" $((saved + 1)) loss)"
before="$(value_of "$run/metrics-before-the-kill.jsonl" $((saved + 1)) loss)"
if [[ -n "$before" ]]; then
  is_close "$first" "$before" 1e-4 ||
    die "step $((saved + 1)) has the loss $first on 3 ranks and had $before on 2: see $run"
  overlap="step $((saved + 1)) was computed twice: loss $before on 2 ranks, $first on 3"
else
  overlap="the checkpoint was the last step before the kill"
fi

say "3. resuming on 1 rank"
start 1 "$steps"
finish
expect_resumed 1 "$resume_until"
lines="$(steps_done)"
((lines == steps)) || die "$metrics has $lines lines, not one for each of $steps steps"
begin="$(mean_loss "$metrics" 1 10)"
left="$(mean_loss "$metrics" $((resume_until - 29)) "$resume_until")"
right="$(mean_loss "$metrics" $((resume_until + 1)) $((resume_until + 30)))"
end="$(mean_loss "$metrics" $((steps - 29)) "$steps")"
is_close "$right" "$left" 0.2 || die "the loss jumps from $left to $right at step $resume_until: see $metrics"
awk -v a="$end" -v b="$begin" 'BEGIN {exit !(a < 0.8 * b)}' || die "the loss went from $begin to $end only: see $metrics"

verified="$("$BUILD/bin/tessera-ckpt" verify "$checkpoints")" || die "the checkpoint is damaged: $verified"
rate() {
  awk -F'"tokens_per_second":' -v first="$1" -v last="$2" '
    {split($0, a, /[:,]/); if (a[2] >= first && a[2] <= last) print $2 + 0}' "$metrics" |
    sort -n | awk '{v[NR] = $1} END {printf "%.0f", v[int((NR + 1) / 2)]}'
}

say "What happened"
echo "   loss (mean of the 10 steps up to it; the samples are the same at every number of ranks):"
for ((i = 0; i <= 10; ++i)); do
  step=$((i == 0 ? 10 : steps * i / 10))
  ranks=2
  ((step > saved)) && ranks=3
  ((step > resume_until)) && ranks=1
  awk -v step="$step" -v loss="$(mean_loss "$metrics" $((step - 9)) "$step")" -v ranks="$ranks" 'BEGIN {
    bar = sprintf("%*s", int(loss * 8), ""); gsub(/ /, "#", bar)
    printf "     step %6d  %d rank%s  %.4f  %s\n", step, ranks, ranks == 1 ? " " : "s", loss, bar}'
done
echo "   tokens/s (median): $(rate 1 "$saved") on 2 ranks, $(rate $((saved + 1)) "$resume_until") on 3, $(rate $((resume_until + 1)) "$steps") on 1 ($(nproc) cores here)"
echo "   killed: rank 1 (pid $victim) with SIGKILL after step $killed_at; launcher's exit code 137"
echo "   resumed: on 3 ranks at step $saved, on 1 rank at step $resume_until"
echo "   $overlap"
echo "   checkpoint: $checkpoints"
echo "   $verified"
echo "   from 'tessera-ckpt inspect' of the checkpoint that 3 ranks wrote at step $resume_until:"
sed 's/^/     /' <<<"$excerpt"
echo "   metrics: $metrics; everything the ranks printed: $log"
bin="${BUILD#"$ROOT/"}/bin"
cat <<END
== Next
   $bin/tessera-ckpt inspect $checkpoints
   $bin/tessera-run --nproc 2 -- $bin/tessera-train gpt --preset tiny --data ${data#"$ROOT/"} --steps $((steps * 2)) --checkpoint-dir $checkpoints --checkpoint-every $every --metrics $metrics
   $bin/tessera-run --nproc 2 -- $bin/tessera-train wordvec --data ${data#"$ROOT/"} --steps 200 --checkpoint-dir $run/wordvec --checkpoint-every 50
   scripts/test.sh
END
