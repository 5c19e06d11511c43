# CUDA's messages and scripts/gpu_check.sh, on machines without a GPU.
if(TESSERA_BUILD_TORCH AND TESSERA_BUILD_TOOLS)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  add_executable(runtime_report ../support/runtime_report.cc)
  target_link_libraries(runtime_report PRIVATE tessera)
  tessera_apply_settings(runtime_report)
  set(nccl_library "")
  if(TARGET tessera_nccl)
    set(nccl_library $<TARGET_FILE:tessera_nccl>)
  endif()
  add_test(NAME gpu_messages_test COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/gpu_messages_test.py
    $<TARGET_FILE:tessera-run> $<TARGET_FILE:runtime_report> $<TARGET_FILE:tessera-train>
    $<TARGET_FILE_DIR:fake_cuda_driver> ${nccl_library})
  set_tests_properties(gpu_messages_test PROPERTIES TIMEOUT 300 PROCESSORS 2)
  add_test(NAME gpu_check_test COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/gpu_check_test.py
    ${PROJECT_SOURCE_DIR}/scripts/gpu_check.sh ${CMAKE_BINARY_DIR})
  set_tests_properties(gpu_check_test PROPERTIES TIMEOUT 120)
endif()
