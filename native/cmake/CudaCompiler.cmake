# Finds nvcc and tries it, because enable_language(CUDA) ends the configuration where nvcc does not work.

include(KernelTrial)

string(CONCAT softmaxd_CUDA_advice
  "Install NVIDIA's CUDA Toolkit 12 or newer (https://developer.nvidia.com/cuda-downloads; of its packages, cuda-nvcc "
  "and cuda-cudart-dev are enough) with a g++ that it supports. Elsewhere than on the PATH or in /usr/local/cuda: point "
  "CMAKE_CUDA_COMPILER at nvcc, and CMAKE_CUDA_ARCHITECTURES at what it can compile for.")

# Sets softmaxd_CUDA_problem (why this runtime cannot be had, in a few words; empty if it can), _detail (that in one
# line; empty if no compiler was found), _output (what the compiler said), _description, _compiler and _architectures.
function(softmaxd_find_CUDA)
  set(names nvcc)
  if(CMAKE_CUDA_COMPILER)
    set(names "${CMAKE_CUDA_COMPILER}")
  elseif(NOT "$ENV{CUDACXX}" STREQUAL "")
    set(names "$ENV{CUDACXX}")
  endif()
  find_program(nvcc NAMES ${names} NO_CACHE
    HINTS ENV CUDA_PATH ENV CUDA_HOME PATH_SUFFIXES bin
    PATHS /usr/local/cuda)

  set(problem "")
  set(detail "")
  set(output "")
  # Machine code for Hopper, and code that the driver compiles for every other device since Turing.
  set(architectures 75-virtual 90)
  if(CMAKE_CUDA_ARCHITECTURES)
    set(architectures ${CMAKE_CUDA_ARCHITECTURES})
  elseif(NOT "$ENV{CUDAARCHS}" STREQUAL "")
    set(architectures $ENV{CUDAARCHS})
  endif()

  if(NOT nvcc)
    set(problem "no nvcc found")
    if(NOT names STREQUAL "nvcc")
      set(problem "no nvcc found at ${names}")
    endif()
  else()
    softmaxd_nvcc_options(options "${architectures}")
    softmaxd_try_kernel(error output "${nvcc}" -x cu -std=c++17 ${options})
    if(NOT error STREQUAL "")
      set(problem "nvcc does not work")
      set(detail "${nvcc} cannot compile a kernel for ${architectures}: ${error}")
    endif()
  endif()

  set(softmaxd_CUDA_problem "${problem}" PARENT_SCOPE)
  set(softmaxd_CUDA_detail "${detail}" PARENT_SCOPE)
  set(softmaxd_CUDA_output "${output}" PARENT_SCOPE)
  set(softmaxd_CUDA_description "nvcc ${nvcc}, ${architectures}" PARENT_SCOPE)
  set(softmaxd_CUDA_compiler "${nvcc}" PARENT_SCOPE)
  set(softmaxd_CUDA_architectures "${architectures}" PARENT_SCOPE)
endfunction()

# Sets <options> to what CMake gives nvcc for architectures of CMAKE_CUDA_ARCHITECTURES, for the user's host compiler
# and for the user's flags.
function(softmaxd_nvcc_options options architectures)
  separate_arguments(list UNIX_COMMAND "${CMAKE_CUDA_FLAGS} $ENV{CUDAFLAGS}")
  if(CMAKE_CUDA_HOST_COMPILER)
    list(APPEND list -ccbin "${CMAKE_CUDA_HOST_COMPILER}")
  elseif(NOT "$ENV{CUDAHOSTCXX}" STREQUAL "")
    list(APPEND list -ccbin "$ENV{CUDAHOSTCXX}")
  endif()
  foreach(architecture IN LISTS architectures)
    if(architecture MATCHES "^([0-9]+[a-z]?)-virtual$")
      list(APPEND list "-gencode=arch=compute_${CMAKE_MATCH_1},code=compute_${CMAKE_MATCH_1}")
    elseif(architecture MATCHES "^([0-9]+[a-z]?)(-real)?$")
      list(APPEND list "-gencode=arch=compute_${CMAKE_MATCH_1},code=sm_${CMAKE_MATCH_1}")
    else() # native, all, all-major
      list(APPEND list "-arch=${architecture}")
    endif()
  endforeach()
  set(${options} "${list}" PARENT_SCOPE)
endfunction()
