tessera_core_test(checkpoint_test checkpoint_directory_test.cc checkpoint_manifest_test.cc)
if(TESSERA_BUILD_TORCH)
  tessera_torch_executable(checkpoint_torch_test checkpoint_async_test.cc checkpoint_cases_test.cc
    checkpoint_custom_test.cc checkpoint_faults_test.cc checkpoint_golden_test.cc
    checkpoint_items_test.cc checkpoint_partial_test.cc checkpoint_repeat_test.cc
    checkpoint_round_trip_test.cc
    checkpoint_streamed_test.cc checkpoint_values_test.cc)
  target_compile_definitions(checkpoint_torch_test PRIVATE
    TESSERA_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")
  target_link_libraries(checkpoint_torch_test PRIVATE GTest::gtest_main)
  tessera_torch_executable(checkpoint_matrix_test checkpoint_bytes_test.cc checkpoint_matrix.cc
    checkpoint_matrix_test.cc)
  target_link_libraries(checkpoint_matrix_test PRIVATE GTest::gtest_main)
  foreach(suite Bytes Matrix Memory)
    add_test(NAME checkpoint_matrix_test.${suite}
      COMMAND checkpoint_matrix_test --gtest_filter=*Checkpoint${suite}*)
    set_tests_properties(checkpoint_matrix_test.${suite} PROPERTIES TIMEOUT 1200
      FAIL_REGULAR_EXPRESSION "Running 0 tests" ENVIRONMENT "OMP_NUM_THREADS=1")
  endforeach()
  # One process a suite: a process of its own for each of the hundred cases would start LibTorch as often.
  foreach(suite Async Cases Custom Faults Golden Items Kinds Partial Repeat RoundTrip Scale Streamed Values)
    add_test(NAME checkpoint_torch_test.${suite}
      COMMAND checkpoint_torch_test --gtest_filter=*Checkpoint${suite}*)
    set_tests_properties(checkpoint_torch_test.${suite} PROPERTIES TIMEOUT 240
      FAIL_REGULAR_EXPRESSION "Running 0 tests" ENVIRONMENT "OMP_NUM_THREADS=1")
  endforeach()
endif()
