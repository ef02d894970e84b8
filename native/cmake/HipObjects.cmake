# Compiles the GPU sources with hipcc.

# An INTERFACE library of object files: they go into the link of the one target that links to it, which must be of this
# directory. From an archive the linker would leave out objects, and with them the registration of their kernels.
function(softmaxd_add_gpu_library target)
  set(command ${softmaxd_HIP_command} -O3 -fPIC -fvisibility=hidden -Wall -Wextra
    "-I${CMAKE_CURRENT_SOURCE_DIR}/include" "-I${CMAKE_CURRENT_SOURCE_DIR}/src")
  if(SOFTMAXD_WARNINGS_AS_ERRORS)
    list(APPEND command -Werror)
  endif()
  if(CMAKE_BUILD_TYPE STREQUAL "Debug")
    list(APPEND command -g)
  else()
    list(APPEND command -DNDEBUG)
  endif()

  set(objects "")
  foreach(name IN LISTS ARGN)
    set(source "${CMAKE_CURRENT_SOURCE_DIR}/${name}")
    set(object "${CMAKE_CURRENT_BINARY_DIR}/${target}/${name}.o")
    cmake_path(GET object PARENT_PATH directory)
    file(MAKE_DIRECTORY "${directory}")
    add_custom_command(OUTPUT "${object}"
      COMMAND ${command} -MD -MT "${object}" -MF "${object}.d" -c "${source}" -o "${object}"
      DEPENDS "${source}"
      DEPFILE "${object}.d"
      COMMENT "Building HIP object ${target}/${name}.o"
      VERBATIM)
    list(APPEND objects "${object}")
  endforeach()
  set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)

  add_library(${target} INTERFACE)
  target_sources(${target} INTERFACE ${objects})
  target_link_libraries(${target} INTERFACE "${softmaxd_HIP_library}")
endfunction()
