# Damage, crashes and shared directories, on ranks that are threads and disks that are in memory.
# Short forms here; TESSERA_LONG_TESTS=1 in the environment makes them long.
tessera_torch_executable(checkpoint_proofs_test checkpoint_corruption_test.cc
  checkpoint_crash_test.cc checkpoint_store_test.cc)
target_link_libraries(checkpoint_proofs_test PRIVATE GTest::gtest_main)
foreach(suite Corruption Crash Store)
  add_test(NAME checkpoint_proofs_test.${suite}
    COMMAND checkpoint_proofs_test --gtest_filter=*Checkpoint${suite}*)
  set_tests_properties(checkpoint_proofs_test.${suite} PROPERTIES TIMEOUT 240
    FAIL_REGULAR_EXPRESSION "Running 0 tests" ENVIRONMENT "OMP_NUM_THREADS=1")
endforeach()
