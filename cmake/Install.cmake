# Installation: headers, static libraries, tools, and the package configuration behind
# find_package(tessera), which gives tessera::tessera and tessera::core.
include(CMakePackageConfigHelpers)
set(TESSERA_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/tessera)

set(_libraries tessera_core)
if(TESSERA_BUILD_TORCH)
  list(APPEND _libraries tessera)
  set_target_properties(tessera PROPERTIES EXPORT_NAME tessera)
endif()
set_target_properties(tessera_core PROPERTIES EXPORT_NAME core)
install(TARGETS ${_libraries} EXPORT tessera-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/tessera DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT tessera-targets NAMESPACE tessera:: DESTINATION ${TESSERA_CMAKE_DIR})

foreach(_tool tessera-run tessera-ckpt tessera-train)
  if(TARGET ${_tool})
    # The installed programs find LibTorch where it is now.
    set_target_properties(${_tool} PROPERTIES INSTALL_RPATH_USE_LINK_PATH TRUE)
    install(TARGETS ${_tool} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endforeach()

if(TARGET tessera_nccl)
  # Programs look for it beside themselves and in ../lib.
  set_target_properties(tessera_nccl PROPERTIES INSTALL_RPATH_USE_LINK_PATH TRUE)
  install(TARGETS tessera_nccl LIBRARY DESTINATION lib)
endif()

configure_package_config_file(cmake/TesseraConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/tessera-config.cmake
  INSTALL_DESTINATION ${TESSERA_CMAKE_DIR} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/tessera-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES cmake/LibTorch.cmake ${CMAKE_CURRENT_BINARY_DIR}/tessera-config.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/tessera-config-version.cmake DESTINATION ${TESSERA_CMAKE_DIR})
