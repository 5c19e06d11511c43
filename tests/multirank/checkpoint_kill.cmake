tessera_torch_executable(checkpoint_kill checkpoint_kill.cc)
find_package(Python3 COMPONENTS Interpreter REQUIRED)
add_test(NAME checkpoint_kill_test
  COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/checkpoint_kill_test.py
    $<TARGET_FILE:tessera-run> $<TARGET_FILE:checkpoint_kill>)
set_tests_properties(checkpoint_kill_test PROPERTIES TIMEOUT 1200 PROCESSORS 2)
