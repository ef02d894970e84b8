# Finds hipcc and the HIP runtime library. Neither CMake's HIP language nor find_package(hip): they fail or hang on how
# vendors and distributions lay out their packages, while every one of them has a hipcc that knows its own layout.

include(KernelTrial)

string(CONCAT softmaxd_HIP_advice
  "Debian 12: apt-get install --no-install-recommends hipcc libamdhip64-dev rocm-device-libs. "
  "AMD: install ROCm (https://rocm.docs.amd.com). Hygon: install DTK and source /opt/dtk/env.sh. "
  "Elsewhere: point SOFTMAXD_HIPCC at hipcc, and CMAKE_HIP_ARCHITECTURES at what it can compile for.")

# Sets softmaxd_HIP_problem (why this runtime cannot be had, in a few words; empty if it can), _detail (that in one line;
# empty if no compiler was found), _output (what the compiler said), _description, _command (a list that compiles) and
# _library.
function(softmaxd_find_HIP)
  set(names hipcc)
  if(SOFTMAXD_HIPCC)
    set(names "${SOFTMAXD_HIPCC}")
  elseif(CMAKE_HIP_COMPILER)
    set(names "${CMAKE_HIP_COMPILER}")
  endif()
  # Not cached, here and below: a build directory outlives the toolkit that it was made with.
  find_program(hipcc NAMES ${names} NO_CACHE
    HINTS ENV ROCM_PATH ENV DTKROOT PATH_SUFFIXES bin
    PATHS /opt/dtk /opt/rocm)

  set(problem "")
  set(detail "")
  set(output "")
  set(library "")
  set(architectures gfx906)
  if(CMAKE_HIP_ARCHITECTURES)
    set(architectures ${CMAKE_HIP_ARCHITECTURES})
  endif()
  list(TRANSFORM architectures PREPEND "--offload-arch=" OUTPUT_VARIABLE offload)
  separate_arguments(flags UNIX_COMMAND "${CMAKE_HIP_FLAGS}")
  # Where nvcc is on the PATH, hipcc would call it without HIP_PLATFORM.
  set(command "${CMAKE_COMMAND}" -E env HIP_PLATFORM=amd "${hipcc}" -x hip -std=c++17 ${offload} ${flags})

  if(NOT hipcc)
    set(problem "no hipcc found")
    if(NOT names STREQUAL "hipcc")
      set(problem "no hipcc found at ${names}")
    endif()
  else()
    softmaxd_find_hip_library(library "${hipcc}")
    softmaxd_try_kernel(error output ${command})
    if(NOT error STREQUAL "")
      set(problem "hipcc does not work")
      set(detail "${hipcc} cannot compile a kernel for ${architectures}: ${error}")
    elseif(NOT library)
      set(problem "no HIP runtime library found")
      set(detail "${hipcc} compiles, but there is no libamdhip64 beside it or in the system's library path")
    endif()
  endif()

  set(softmaxd_HIP_problem "${problem}" PARENT_SCOPE)
  set(softmaxd_HIP_detail "${detail}" PARENT_SCOPE)
  set(softmaxd_HIP_output "${output}" PARENT_SCOPE)
  set(softmaxd_HIP_description "hipcc ${hipcc}, ${architectures}" PARENT_SCOPE)
  set(softmaxd_HIP_command "${command}" PARENT_SCOPE)
  set(softmaxd_HIP_library "${library}" PARENT_SCOPE)
endfunction()

# Sets <library> to the runtime that belongs to a hipcc. One of another release has another ABI, so what lies beside
# hipcc goes before the system's.
function(softmaxd_find_hip_library library hipcc)
  file(REAL_PATH "${hipcc}" real)
  set(prefixes "")
  foreach(path IN ITEMS "${hipcc}" "${real}")
    cmake_path(GET path PARENT_PATH path)
    cmake_path(GET path PARENT_PATH path)
    list(APPEND prefixes "${path}" "${path}/hip")
  endforeach()
  if(SOFTMAXD_HIP_LIBRARY)
    set(found "${SOFTMAXD_HIP_LIBRARY}")
  else()
    # DTK's runtime is named galaxyhip, in hip/lib; most of its releases have it under AMD's name too.
    find_library(found NAMES amdhip64 galaxyhip NAMES_PER_DIR NO_CACHE
      HINTS ${prefixes} PATH_SUFFIXES lib lib64)
  endif()
  set(${library} "${found}" PARENT_SCOPE)
endfunction()
