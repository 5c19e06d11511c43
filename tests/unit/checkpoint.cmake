tessera_core_test(checkpoint_test checkpoint_directory_test.cc checkpoint_manifest_test.cc)
if(TESSERA_BUILD_TORCH)
  tessera_torch_executable(checkpoint_torch_test checkpoint_cases_test.cc
    checkpoint_custom_test.cc checkpoint_faults_test.cc checkpoint_golden_test.cc checkpoint_round_trip_test.cc)
  target_compile_definitions(checkpoint_torch_test PRIVATE
    TESSERA_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")
  target_link_libraries(checkpoint_torch_test PRIVATE GTest::gtest_main)
  gtest_discover_tests(checkpoint_torch_test TEST_PREFIX "checkpoint_torch_test." DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT 120 ENVIRONMENT "OMP_NUM_THREADS=1")
endif()
