# Tries a GPU compiler on kernel_trial.hip.

set(softmaxd_kernel_trial "${CMAKE_CURRENT_LIST_DIR}/kernel_trial.hip")

# softmaxd_try_kernel(<error> <output> <command>...)
# Sets <error> to the line of the command's output that says what went wrong, empty if nothing did, and <output> to all
# of its output.
function(softmaxd_try_kernel error output)
  set(object "${PROJECT_BINARY_DIR}/kernel_trial.o")
  file(REMOVE "${object}")
  execute_process(
    COMMAND ${ARGN} -c "${softmaxd_kernel_trial}" -o "${object}"
    WORKING_DIRECTORY "${PROJECT_BINARY_DIR}"
    RESULT_VARIABLE status OUTPUT_VARIABLE said ERROR_VARIABLE said
    TIMEOUT 300)
  set(line "")
  if(NOT status EQUAL 0 OR NOT EXISTS "${object}")
    string(REGEX MATCH "[^\n]*([Ee]rror|[Ff]atal)[^\n]*" line "${said}")
    if(line STREQUAL "")
      string(REGEX MATCH "[^\n]+" line "${said}")
    endif()
    if(line STREQUAL "")
      set(line "it said nothing and ended with ${status}")
    endif()
    string(STRIP "${line}" line)
  endif()
  set(${error} "${line}" PARENT_SCOPE)
  set(${output} "${said}" PARENT_SCOPE)
endfunction()
