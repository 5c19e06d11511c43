find_package(Python3 REQUIRED COMPONENTS Interpreter)
if(TARGET tessera-ckpt)
  add_test(NAME cli.ckpt_tool
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/ckpt_tool_test.py
      $<TARGET_FILE:tessera-ckpt> ${PROJECT_SOURCE_DIR}/tests/data/golden_v1
      ${PROJECT_SOURCE_DIR}/src/checkpoint/FORMAT.md)
  set_tests_properties(cli.ckpt_tool PROPERTIES TIMEOUT 120)
endif()
