# Devices and the NCCL library without a GPU: a stand-in for the driver and for the library.
tessera_core_test(cuda_devices_test cuda_devices_test.cc)

add_library(fake_cuda_driver SHARED ../support/fake_cuda_driver.cc)
set_target_properties(fake_cuda_driver PROPERTIES OUTPUT_NAME cuda VERSION 1 SOVERSION 1
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fake_cuda_driver)
tessera_apply_settings(fake_cuda_driver)

if(TESSERA_BUILD_TORCH)
  foreach(version 1 0)
    add_library(fake_nccl_library_${version} MODULE ../support/fake_nccl_library.cc)
    target_link_libraries(fake_nccl_library_${version} PRIVATE tessera_libtorch)
    target_include_directories(fake_nccl_library_${version} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
    target_compile_definitions(fake_nccl_library_${version} PRIVATE FAKE_INTERFACE_VERSION=${version})
    tessera_apply_settings(fake_nccl_library_${version})
  endforeach()
  tessera_torch_executable(nccl_loader_test nccl_loader_test.cc)
  target_link_libraries(nccl_loader_test PRIVATE GTest::gtest_main)
  target_compile_definitions(nccl_loader_test PRIVATE
    TESSERA_FAKE_NCCL_LIBRARY="$<TARGET_FILE:fake_nccl_library_1>"
    TESSERA_OLD_NCCL_LIBRARY="$<TARGET_FILE:fake_nccl_library_0>"
    TESSERA_OTHER_LIBRARY="$<TARGET_FILE:fake_cuda_driver>")
  add_dependencies(nccl_loader_test fake_nccl_library_1 fake_nccl_library_0 fake_cuda_driver)
  if(TARGET tessera_nccl)
    target_compile_definitions(nccl_loader_test PRIVATE TESSERA_NCCL_LIBRARY_PATH="$<TARGET_FILE:tessera_nccl>")
    add_dependencies(nccl_loader_test tessera_nccl)
  endif()
  gtest_discover_tests(nccl_loader_test TEST_PREFIX "nccl_loader_test." DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 120)
endif()
