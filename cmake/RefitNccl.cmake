# Finds nccl.h: an installed one, else what scripts/gpu-tools.sh put into build/tools/gpu. Sets REFIT_NCCL_FOUND and
# REFIT_NCCL_INCLUDE (with CUDA's, which nccl.h includes). NCCL itself is opened at run time; nothing links it.
include_guard(GLOBAL)
include(${CMAKE_CURRENT_LIST_DIR}/RefitCuda.cmake)
option(REFIT_NCCL "Build the transport nccl where nccl.h is found" ON)
set(REFIT_NCCL_FOUND OFF)
if(NOT REFIT_NCCL)
  message(STATUS "NCCL: left out (REFIT_NCCL=OFF)")
  return()
endif()
if(NOT REFIT_CUDA_FOUND)
  message(STATUS "NCCL: left out, nccl.h needs CUDA's headers")
  return()
endif()
find_path(REFIT_NCCL_HEADER nccl.h HINTS ${REFIT_CUDA_INCLUDE}
  PATHS ${PROJECT_SOURCE_DIR}/build/tools/gpu/nvidia/nccl/include)
if(NOT REFIT_NCCL_HEADER)
  message(STATUS "NCCL: left out, no nccl.h (install libnccl-dev, or run scripts/gpu-tools.sh build/tools/gpu)")
  return()
endif()
file(STRINGS ${REFIT_NCCL_HEADER}/nccl.h version REGEX "^#define NCCL_VERSION_CODE [0-9]+")
string(REGEX MATCH "[0-9]+" version "${version}")
if(version LESS 22900) # older headers do not declare what is used where the library has it
  message(STATUS "NCCL: left out, ${REFIT_NCCL_HEADER}/nccl.h is version ${version}, 22900 or newer is needed")
  return()
endif()
set(REFIT_NCCL_FOUND ON)
# cccl has nv/target, which cuda_fp16.h includes.
set(REFIT_NCCL_INCLUDE ${REFIT_NCCL_HEADER} ${REFIT_CUDA_INCLUDE} ${REFIT_CUDA_INCLUDE}/cccl)
message(STATUS "NCCL: header ${REFIT_NCCL_HEADER} (${version})")

# Optional: the header of NCCL M2N, for the transport's fast path; it includes cuda_runtime.h. Sets
# REFIT_NCCL_M2N_FOUND; its directory is in REFIT_NCCL_INCLUDE then.
set(REFIT_NCCL_M2N_FOUND OFF)
find_path(REFIT_NCCL_M2N_HEADER nccl_m2n.h HINTS ${REFIT_NCCL_HEADER} ${REFIT_CUDA_INCLUDE}
  PATHS ${PROJECT_SOURCE_DIR}/build/tools/gpu/nccl/m2n/include)
if(NOT REFIT_NCCL_M2N_HEADER)
  message(STATUS "NCCL M2N: left out, no nccl_m2n.h (run scripts/gpu-tools.sh build/tools/gpu)")
  return()
endif()
file(STRINGS ${REFIT_NCCL_M2N_HEADER}/nccl_m2n.h m2n REGEX "^#define NCCL_M2N_API_VERSION [0-9]+")
if(version LESS 23005 OR NOT m2n MATCHES "VERSION 2u" OR NOT EXISTS ${REFIT_CUDA_INCLUDE}/cuda_runtime.h)
  message(STATUS "NCCL M2N: left out, it takes NCCL 2.30.5, cuda_runtime.h and version 2 of its interface")
  return()
endif()
set(REFIT_NCCL_M2N_FOUND ON)
list(APPEND REFIT_NCCL_INCLUDE ${REFIT_NCCL_M2N_HEADER})
message(STATUS "NCCL M2N: header ${REFIT_NCCL_M2N_HEADER}")
