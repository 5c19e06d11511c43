#!/usr/bin/env bash
# Fetches the CUDA and NCCL headers that tessera_nccl is compiled with, for machines without a CUDA
# toolkit, into .deps/cuda-headers, where CMake finds them: 200 MB to download, 5 MB kept. Does nothing
# where they are in place.
#
# The versions are those that the torch wheel was built with. Of the math libraries (cuBLAS, cuSPARSE,
# cuSOLVER; 1 GB more) only opaque handles are needed; src/nccl/cuda_stub declares those.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

target=.deps/cuda-headers
case "$TORCH_VERSION" in
  2.11.*) packages=(nvidia-nccl-cu13==2.28.9 nvidia-cuda-runtime==13.0.96) ;;
  *)
    die "no list of packages for torch $TORCH_VERSION: give a CUDA toolkit's headers with -DTESSERA_CUDA_HEADERS=FOLDER" ;;
esac

stamp="torch $TORCH_VERSION: ${packages[*]}"
if [ -f "$target/contents" ] && [ "$(cat "$target/contents")" = "$stamp" ]; then
  exit 0
fi

mkdir -p .deps
work=$(mktemp -d .deps/cuda-headers.XXXXXX)
trap 'rm -rf "$work"' EXIT
say "CUDA headers: downloading ${packages[*]}"
python3 -m pip download --quiet --disable-pip-version-check --no-input --retries 5 --no-deps --only-binary=:all: \
  --dest "$work/wheels" "${packages[@]}" </dev/null || die "pip could not download ${packages[*]}: see above"
python3 - "$work" <<'PYTHON'
import pathlib, sys, zipfile
work = pathlib.Path(sys.argv[1])
for wheel in sorted((work / "wheels").glob("*.whl")):
    with zipfile.ZipFile(wheel) as archive:
        headers = [name for name in archive.namelist() if "/include/" in name or "/License" in name]
        archive.extractall(work / "headers", headers)
PYTHON
test -f "$work/headers/nvidia/nccl/include/nccl.h"
echo "$stamp" > "$work/headers/contents"
# Complete before it gets its name, so that an interrupted run leaves nothing half done.
rm -rf "$target"
mv -T "$work/headers" "$target"
say "CUDA headers: $(du -sh "$target" | cut -f1) in $target"
