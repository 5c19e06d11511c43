# The trainers' own pieces; those that need no torch first.
if(TESSERA_BUILD_TOOLS)
  tessera_core_test(train_base_test train_memory_report_test.cc train_metrics_test.cc
    train_options_test.cc train_progress_test.cc train_sampler_test.cc train_targets_test.cc
    train_text_test.cc train_vocabulary_test.cc)
  target_link_libraries(train_base_test PRIVATE tessera_train_base)
  if(TESSERA_BUILD_TORCH)
    tessera_torch_executable(train_models_test train_models_test.cc)
    target_link_libraries(train_models_test PRIVATE tessera_train_models GTest::gtest_main)
    gtest_discover_tests(train_models_test TEST_PREFIX "train_models_test." DISCOVERY_TIMEOUT 60
      PROPERTIES TIMEOUT 120 ENVIRONMENT OMP_NUM_THREADS=1)
  endif()
endif()
