function(tessera_apply_sanitizers target)
  if(TESSERA_SANITIZE STREQUAL "address")
    # The check of vptr makes a pipe for each look at memory, and calls a good object bad where a program
    # has used up its descriptors, which a test of the launcher does.
    target_compile_options(${target} PRIVATE -fsanitize=address,undefined -fno-sanitize=vptr
      -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=address,undefined)
  elseif(TESSERA_SANITIZE STREQUAL "thread")
    target_compile_options(${target} PRIVATE -fsanitize=thread -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=thread)
  elseif(NOT TESSERA_SANITIZE STREQUAL "")
    message(FATAL_ERROR "TESSERA_SANITIZE must be empty, address or thread, not '${TESSERA_SANITIZE}'")
  endif()
endfunction()
