# The trainers' command line, run as a user runs it: real ranks under the real launcher.
if(TARGET tessera-train)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  foreach(_suite bad_input equality interrupt resume)
    add_test(NAME cli.train_${_suite}
      COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/train_${_suite}_test.py)
    set_tests_properties(cli.train_${_suite} PROPERTIES TIMEOUT 300 PROCESSORS 2
      ENVIRONMENT "TESSERA_RUN=$<TARGET_FILE:tessera-run>;TESSERA_TRAIN=$<TARGET_FILE:tessera-train>;PYTHONDONTWRITEBYTECODE=1")
  endforeach()
endif()
