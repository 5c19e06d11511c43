# Finds LibTorch and defines the imported target tessera_libtorch. Used by this build and, installed,
# by find_package(tessera).
#
# Looked for, in this order: TESSERA_LIBTORCH (a folder with include/ and lib/), the folders of
# CMAKE_PREFIX_PATH (such a folder, or one that holds torch/ or libtorch/), .deps/torch-<version>/torch
# as made by scripts/setup.sh, and TESSERA_LIBTORCH_OF_BUILD, which an installation sets.
# find_package(Torch) is not used: with the CUDA wheel it fails at configure time under C++20, links
# libtorch_cuda, and forces the definitions of every backend on all files.
set(TESSERA_TORCH_VERSION "2.11.0" CACHE STRING "Version of the torch wheel that scripts/setup.sh installs")
set(TESSERA_LIBTORCH "" CACHE PATH "Folder of LibTorch (with include/ and lib/)")

set(_candidates ${TESSERA_LIBTORCH})
string(REPLACE ":" ";" _prefixes "$ENV{CMAKE_PREFIX_PATH}")
foreach(_prefix IN LISTS CMAKE_PREFIX_PATH _prefixes)
  list(APPEND _candidates ${_prefix} ${_prefix}/torch ${_prefix}/libtorch)
endforeach()
list(APPEND _candidates ${CMAKE_CURRENT_LIST_DIR}/../.deps/torch-${TESSERA_TORCH_VERSION}/torch ${TESSERA_LIBTORCH_OF_BUILD})

set(_torch "")
foreach(_candidate IN LISTS _candidates)
  if(EXISTS ${_candidate}/include/torch/csrc/api/include/torch/torch.h AND EXISTS ${_candidate}/lib/libtorch_cpu.so)
    get_filename_component(_torch ${_candidate} ABSOLUTE)
    set(_found_as ${_candidate})  # a loop's variable does not outlive it
    break()
  endif()
endforeach()
if(_torch STREQUAL "" OR (TESSERA_LIBTORCH AND NOT _found_as STREQUAL TESSERA_LIBTORCH))
  message(FATAL_ERROR "LibTorch not found. Run scripts/build.sh, which installs the torch wheel, "
    "or pass -DTESSERA_LIBTORCH=<folder with include/ and lib/>. Looked in: ${_candidates}")
endif()
set(TESSERA_LIBTORCH_FOUND_DIR ${_torch} CACHE INTERNAL "")
# Releases differ in which header says it.
set(_version "")
foreach(_header csrc/api/include/torch/version.h headeronly/version.h)
  if(EXISTS ${_torch}/include/torch/${_header})
    file(STRINGS ${_torch}/include/torch/${_header} _lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
    foreach(_line IN LISTS _lines)
      string(REGEX MATCH "[0-9]+$" _number "${_line}")
      list(APPEND _version ${_number})
    endforeach()
  endif()
endforeach()
list(JOIN _version "." _version)
message(STATUS "LibTorch: ${_torch} (${_version})")

add_library(tessera_libtorch INTERFACE IMPORTED GLOBAL)
target_include_directories(tessera_libtorch SYSTEM INTERFACE
  ${_torch}/include ${_torch}/include/torch/csrc/api/include)
# The wheel keeps the two CUDA runtime libraries of libtorch_cpu.so in sibling packages, which its own
# RPATH finds at run time; the linker needs to be told.
target_link_options(tessera_libtorch INTERFACE LINKER:-rpath,${_torch}/lib LINKER:--allow-shlib-undefined)
target_link_libraries(tessera_libtorch INTERFACE ${_torch}/lib/libtorch_cpu.so ${_torch}/lib/libc10.so)
if(EXISTS ${_torch}/share/cmake/Torch/TorchConfig.cmake)
  file(READ ${_torch}/share/cmake/Torch/TorchConfig.cmake _config)
  if(_config MATCHES "_GLIBCXX_USE_CXX11_ABI=0")
    target_compile_definitions(tessera_libtorch INTERFACE _GLIBCXX_USE_CXX11_ABI=0)
  endif()
endif()
