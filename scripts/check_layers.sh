#!/usr/bin/env bash
# Checks what no compiler checks: the direction of dependencies between the folders of src/, the size
# of files, that no file names a folder of somebody's machine, and that README.md shows the example
# that the tests compile. Prints every breach; exits with 1 where there is one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

breaches=0
breach() {
  printf '%s\n' "$*"
  breaches=$((breaches + 1))
}

# Folder -> the folders whose headers its files may include, besides its own and the public ones.
declare -A MAY_USE=(
  [util]=""
  [io]="util"
  [layout]="util"
  [launch]="util"
  [comm]="util"
  [nccl]="util comm"
  [fsdp]="util layout comm"
  [optim]="util layout comm fsdp"
  [checkpoint]="util io layout comm"
  [tools]="util io layout launch comm nccl fsdp optim checkpoint"
  [train]=""
)
# Single headers beyond that: checksums are arithmetic and open no file; who reads tensors in the
# background must hear of writes to them.
ALSO=" fsdp:io/checksum.h checkpoint:fsdp/write_guard.h "
# The torch-free folders see one public header. What else is torch-free is shown by the build without torch.
TORCH_FREE="util io layout launch"

check_includes() {
  local folder="$1" file line header top
  while IFS=: read -r file line header; do
    [[ "$header" =~ ^#include\ [\"\<]([^\">]+) ]] && header="${BASH_REMATCH[1]}"
    top="${header%%/*}"
    if [[ "$top" == tessera ]]; then
      if [[ " $TORCH_FREE " == *" $folder "* && "$header" != tessera/error.h ]]; then
        breach "$file:$line: src/$folder is torch-free and includes $header"
      fi
    elif [[ "$header" == */* && -n "${MAY_USE[$top]+known}" && "$top" != "$folder" ]]; then
      if [[ " ${MAY_USE[$folder]} " != *" $top "* && "$ALSO" != *" $folder:$header "* ]]; then
        breach "$file:$line: src/$folder may not use src/$top ($header)"
      fi
    elif [[ "$top" =~ ^(torch|ATen|c10)$ && " $TORCH_FREE " == *" $folder "* ]]; then
      breach "$file:$line: src/$folder is torch-free and includes $header"
    fi
  done < <(grep -rnE '^#include ["<]' "src/$folder" --include='*.h' --include='*.cc' || true)
}

for path in src/*/; do
  folder="$(basename "$path")"
  if [[ -z "${MAY_USE[$folder]+known}" ]]; then
    breach "src/$folder is not in the table of scripts/check_layers.sh"
  else
    check_includes "$folder"
  fi
done

# Public headers: only each other, torch and the standard library.
while IFS=: read -r file line header; do
  [[ "$header" =~ ^#include\ [\"\<]([^\">]+) ]] && header="${BASH_REMATCH[1]}"
  case "$header" in
    torch/* | tessera/*) ;;
    */* | *.h) breach "$file:$line: a public header includes $header" ;;
  esac
done < <(grep -rnE '^#include ["<]' include/tessera)

# The build files say the same: only tests and tools link the tools' libraries.
while IFS= read -r line; do
  breach "$line: the library may not link the trainers"
done < <(grep -nE 'target_link_libraries\(tessera(_core)? .*(tessera_train|tessera-)' CMakeLists.txt src/*/CMakeLists.txt || true)

# Sizes: goal 400 lines and 200 for a header, limit 600 and 300; for tests the goal alone.
while IFS= read -r file; do
  lines="$(wc -l <"$file")"
  goal=400 limit=600
  if [[ "$file" == *.h ]]; then goal=200 limit=300; fi
  if ((lines > limit)) && [[ "$file" != tests/* ]]; then
    breach "$file: $lines lines, the limit is $limit"
  elif ((lines > goal)); then
    echo "note: $file: $lines lines, the goal is $goal"
  fi
done < <(find src include tests scripts -name '*.h' -o -name '*.cc' -o -name '*.py' -o -name '*.sh' | sort)

# A path below one of these is a folder of a machine, not of the project.
while IFS= read -r line; do
  breach "$line: names a folder of a machine"
done < <(grep -rnIE '(^|[^A-Za-z0-9_.$}>-])/(home|work|Users|mnt)/[A-Za-z0-9_.]' \
  --include='*' src include tests scripts cmake CMakeLists.txt README.md .ci .clang-format .clang-tidy .gitignore |
  grep -v '^scripts/check_layers.sh:' | cut -c -160 || true)

# The first C++ block of README.md is the program that the tests build and run.
example=tests/install/example/train.cc
if ! diff <(awk '/^```cpp$/ {on = 1; next} /^```$/ {if (on) exit} on' README.md) "$example" >/dev/null; then
  breach "README.md: its C++ example differs from $example"
fi

if ((breaches > 0)); then
  echo "$breaches breach(es)"
  exit 1
fi
echo "layers, sizes, paths and README are as they must be"
