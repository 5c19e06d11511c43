# Helpers for tests. Every test has a timeout; multi-rank tests run real processes under tessera-run.
find_package(GTest REQUIRED)
include(GoogleTest)

# Unit tests of the torch-free core: one executable, one ctest entry per gtest case.
function(tessera_core_test name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE tessera_core GTest::gmock GTest::gtest GTest::gtest_main nlohmann_json::nlohmann_json)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  tessera_apply_settings(${name})
  gtest_discover_tests(${name} TEST_PREFIX "${name}." DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 120)
endfunction()

# Tests that need torch. Reuses the precompiled header of one executable of this kind.
function(tessera_torch_executable name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE tessera GTest::gmock GTest::gtest nlohmann_json::nlohmann_json)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  tessera_apply_settings(${name})
  if(TARGET tessera_test_pch)
    target_precompile_headers(${name} REUSE_FROM tessera_test_pch)
  endif()
endfunction()

# A gtest executable whose cases all run in every rank, in lockstep, as real processes under
# tessera-run, once for each backend and world size: tessera_multirank_test(name BACKENDS shm gloo
# WORLDS 1 2 3). At world size 1 shm and gloo run as such, not as the single backend.
function(tessera_multirank_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "BACKENDS;WORLDS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 240)
  endif()
  foreach(backend IN LISTS arg_BACKENDS)
    foreach(world IN LISTS arg_WORLDS)
      if(backend STREQUAL "single" AND world GREATER 1)
        continue()
      endif()
      set(test ${name}.${backend}.${world}ranks)
      add_test(NAME ${test} COMMAND tessera-run --nproc ${world} -- $<TARGET_FILE:${name}>)
      # More than one rank fills a small machine; ranks beyond two wait for each other anyway.
      set(processors 2)
      if(world EQUAL 1)
        set(processors 1)
      endif()
      set_tests_properties(${test} PROPERTIES TIMEOUT ${arg_TIMEOUT} PROCESSORS ${processors}
        ENVIRONMENT "TESSERA_BACKEND=${backend};TESSERA_TIMEOUT_SECONDS=60;OMP_NUM_THREADS=1")
    endforeach()
  endforeach()
endfunction()
