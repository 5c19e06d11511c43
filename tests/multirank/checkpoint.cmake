tessera_torch_executable(checkpoint_fsdp_test checkpoint_fsdp_test.cc ../support/multirank_main.cc)
tessera_multirank_test(checkpoint_fsdp_test BACKENDS single shm gloo WORLDS 1 2 3)
tessera_torch_executable(checkpoint_async_test checkpoint_async_test.cc ../support/multirank_main.cc)
tessera_multirank_test(checkpoint_async_test BACKENDS single shm gloo WORLDS 1 2 3)
tessera_torch_executable(checkpoint_worlds checkpoint_worlds.cc)
find_package(Python3 COMPONENTS Interpreter REQUIRED)
add_test(NAME checkpoint_worlds_test
  COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/checkpoint_worlds_test.py
    $<TARGET_FILE:tessera-run> $<TARGET_FILE:checkpoint_worlds> $<TARGET_FILE:tessera-ckpt>)
set_tests_properties(checkpoint_worlds_test PROPERTIES TIMEOUT 300)
