# Warnings and sanitizers for our own targets only; nothing leaks to a project that embeds us.
function(tessera_apply_settings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wno-unused-parameter)
  if(TESSERA_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  tessera_apply_sanitizers(${target})
endfunction()
