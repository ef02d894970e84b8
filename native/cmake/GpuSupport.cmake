# Decides from SOFTMAXD_GPU which GPU runtime this build is for, and says so.
#
# Sets softmaxd_gpu_runtime to NONE, HIP or CUDA. For the latter two it defines
#   softmaxd_add_gpu_library(<target> <source>...)
# which has the GPU compiler compile the sources into what links to the target.

include(HipCompiler)
include(CudaCompiler)

set(choice "${SOFTMAXD_GPU}")
if(choice STREQUAL "")
  set(choice "$ENV{SOFTMAXD_GPU}")
endif()
if(choice STREQUAL "")
  set(choice AUTO)
endif()

set(choices AUTO NONE HIP CUDA)
if(NOT choice IN_LIST choices)
  message(FATAL_ERROR
    "SOFTMAXD_GPU is \"${choice}\"; allowed are AUTO, NONE, HIP and CUDA. AUTO takes the GPU compiler that works here, "
    "NONE builds for the CPU alone.")
endif()

set(softmaxd_gpu_runtime NONE)
if(choice STREQUAL "AUTO")
  set(candidates HIP CUDA)
  # With both compilers here, the device decides; these nodes are what the drivers make.
  if(EXISTS /dev/nvidiactl AND NOT EXISTS /dev/kfd)
    set(candidates CUDA HIP)
  endif()
  set(reasons "")
  foreach(candidate IN LISTS candidates)
    cmake_language(CALL softmaxd_find_${candidate})
    if(softmaxd_${candidate}_problem STREQUAL "")
      set(softmaxd_gpu_runtime ${candidate})
      break()
    endif()
    list(APPEND reasons "${softmaxd_${candidate}_problem}")
    if(NOT softmaxd_${candidate}_detail STREQUAL "")
      message(STATUS "softmaxd: ${candidate} passed over: ${softmaxd_${candidate}_detail}")
    endif()
  endforeach()
  list(JOIN reasons ", " reasons)
elseif(choice STREQUAL "NONE")
  set(reasons "asked for")
else()
  cmake_language(CALL softmaxd_find_${choice})
  if(NOT softmaxd_${choice}_problem STREQUAL "")
    set(problem "${softmaxd_${choice}_problem}")
    if(NOT softmaxd_${choice}_detail STREQUAL "")
      set(problem "${softmaxd_${choice}_detail}")
    endif()
    message(FATAL_ERROR "SOFTMAXD_GPU=${choice} cannot be built here: ${problem}.\n${softmaxd_${choice}_advice} "
      "Without a GPU: SOFTMAXD_GPU=NONE.\n${softmaxd_${choice}_output}")
  endif()
  set(softmaxd_gpu_runtime ${choice})
endif()

set(others NONE HIP CUDA)
list(REMOVE_ITEM others ${softmaxd_gpu_runtime})
list(JOIN others "|" others)
if(softmaxd_gpu_runtime STREQUAL "NONE")
  set(description "${reasons}")
else()
  set(description "${softmaxd_${softmaxd_gpu_runtime}_description}")
endif()
message(STATUS
  "softmaxd: GPU support: ${softmaxd_gpu_runtime} (${description}); set -DSOFTMAXD_GPU=${others} for another")

if(softmaxd_gpu_runtime STREQUAL "HIP")
  include(HipObjects)
elseif(softmaxd_gpu_runtime STREQUAL "CUDA")
  set(CMAKE_CUDA_COMPILER "${softmaxd_CUDA_compiler}")
  set(CMAKE_CUDA_ARCHITECTURES "${softmaxd_CUDA_architectures}")
  enable_language(CUDA)
  include(CudaObjects)
endif()
