"""Makes empty stand-ins for the CUDA libraries that Python's torch is linked against.

torchrun is a Python program: it imports all of torch, and with it the libraries of the CUDA toolkit,
several gigabytes of which it calls nothing. With these stand-ins the plain wheel is enough to test
that a program runs under it.

    cuda_stubs.py TORCH_LIB_FOLDER OUTPUT_FOLDER
"""

import collections
import os
import re
import subprocess
import sys

LINKED = ("libtorch_cuda.so", "libtorch_nvshmem.so", "libtorch_python.so", "libc10_cuda.so")
PREFIXES = ("cublas", "cudnn", "cuFile", "cufft", "curand", "cusparse", "cusolver", "nccl", "pnccl", "nvshmem")
LIBRARIES = re.compile(r"lib(cublas|cublasLt|cudnn|cufile|cufft|curand|cusparse|cusparseLt|nccl|nvshmem_host)\.so")


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def read_needs(path):
    """(sonames, {version: soname}, {(symbol, version)}) that one library wants of CUDA."""
    sonames = {name for name in re.findall(r"\(NEEDED\).*\[(.+)\]", output_of("readelf", "-dW", path))
               if LIBRARIES.match(name)}
    versions, file = {}, None
    for line in output_of("readelf", "-VW", path).splitlines():
        if match := re.search(r"File: (\S+)", line):
            file = match[1]
        elif (match := re.search(r"Name: (\S+)\s+Flags", line)) and file in sonames:
            versions[match[1]] = file
    symbols = set()
    for line in output_of("nm", "-D", "--undefined-only", path).splitlines():
        symbol, _, version = line.split()[-1].partition("@")
        if symbol.startswith(PREFIXES):
            symbols.add((symbol, version.lstrip("@")))
    return sonames, versions, symbols


def main(torch_lib, output):
    sonames, versions, symbols = set(), {}, set()
    for name in LINKED:
        needs = read_needs(os.path.join(torch_lib, name))
        sonames |= needs[0]
        versions |= needs[1]
        symbols |= needs[2]
    # Symbols without a version may be in any library that has none.
    plain = sorted(sonames - set(versions.values()))
    contents = collections.defaultdict(lambda: collections.defaultdict(set))
    for symbol, version in symbols:
        contents[versions.get(version, plain[0])][version if version in versions else ""].add(symbol)
    os.makedirs(output, exist_ok=True)
    for soname in sonames:
        source = os.path.join(output, soname + ".c")
        script = os.path.join(output, soname + ".map")
        nodes = contents[soname]
        with open(source, "w", encoding="utf-8") as file:
            for name in sorted(set().union(*nodes.values()) if nodes else []):
                file.write(f"void {name}(void) {{ __builtin_trap(); }}\n")
        with open(script, "w", encoding="utf-8") as file:
            for version, names in nodes.items():
                if version:
                    file.write(f"{version} {{ global: {' '.join(n + ';' for n in sorted(names))} }};\n")
        extra = [f"-Wl,--version-script={script}"] if os.path.getsize(script) else []
        subprocess.run(["gcc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{soname}", *extra, source,
                        "-o", os.path.join(output, soname)], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
