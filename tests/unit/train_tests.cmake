# The trainers' own pieces; those that need no torch first.
if(TESSERA_BUILD_TOOLS)
  tessera_core_test(train_base_test train_metrics_test.cc train_options_test.cc train_progress_test.cc
    train_sampler_test.cc train_text_test.cc train_vocabulary_test.cc)
  target_link_libraries(train_base_test PRIVATE tessera_train_base)
endif()
