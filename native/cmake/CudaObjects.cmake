# Compiles the GPU sources with nvcc, whatever their suffix.

# For every target: where it is not set, CMake asks for the C++ targets' standard of nvcc too, which not every nvcc has.
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)

function(softmaxd_add_gpu_library target)
  set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CUDA)
  add_library(${target} OBJECT ${ARGN})
  target_include_directories(${target} PRIVATE include src)
  target_compile_options(${target} PRIVATE -Xcompiler=-Wall,-Wextra
    $<$<BOOL:${SOFTMAXD_WARNINGS_AS_ERRORS}>:-Werror=all-warnings;-Xcompiler=-Werror>)
endfunction()
