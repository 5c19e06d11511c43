# The launcher's command line tests. What starting and ending processes is about runs the real
# tessera-run; the rest, and everything in a build without LibTorch, the same launcher with a store
# that only listens, which starts in a fraction of the time.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
add_executable(tessera-run-core launch_core_main.cc)
target_link_libraries(tessera-run-core PRIVATE tessera_core)
target_include_directories(tessera-run-core PRIVATE ${PROJECT_SOURCE_DIR}/src)
tessera_apply_settings(tessera-run-core)
foreach(_suite arguments ends output processes signals)
  set(_launcher tessera-run-core)
  if(TARGET tessera-run AND NOT _suite MATCHES "arguments|output")
    set(_launcher tessera-run)
  endif()
  add_test(NAME cli.launch_${_suite}
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/launch_${_suite}_test.py)
  set_tests_properties(cli.launch_${_suite} PROPERTIES TIMEOUT 300
    ENVIRONMENT "TESSERA_RUN=$<TARGET_FILE:${_launcher}>;PYTHONDONTWRITEBYTECODE=1")
endforeach()
