/* libcuda.so.1 of the fake device, as far as PyTorch, Inductor and Triton's launcher call it. */
#define _GNU_SOURCE
#include "fake.h"
#include <cuda.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define PRELOADED(type, function) ((type)dlsym(RTLD_DEFAULT, #function))

static int launched(const char *kernel) { return PRELOADED(int (*)(const char *), fake_launched)(kernel); }

API CUresult cuDriverGetVersion(int *version) { *version = CUDA_VERSION; return CUDA_SUCCESS; }
API CUresult cuDeviceGetCount(int *count) { *count = 1; return CUDA_SUCCESS; }
API CUresult cuDeviceGet(CUdevice *device, int ordinal) { *device = 0; return CUDA_SUCCESS; }
API CUresult cuCtxGetDevice(CUdevice *device) { *device = 0; return CUDA_SUCCESS; }
API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice d) { *context = (CUcontext)1; return CUDA_SUCCESS; }
API CUresult cuCtxGetCurrent(CUcontext *context) { *context = (CUcontext)1; return CUDA_SUCCESS; }
API CUresult cuCtxPopCurrent_v2(CUcontext *context) { *context = (CUcontext)1; return CUDA_SUCCESS; }

API CUresult cuDeviceGetName(char *name, int n, CUdevice device) {
  strncpy(name, "NVIDIA H200 (fake)", n);
  return CUDA_SUCCESS;
}

API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  return PRELOADED(int (*)(int *, int, int), cudaDeviceGetAttribute)(value, attribute, device);
}

API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
  if (flags) *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}

API CUresult cuPointerGetAttribute(void *out, CUpointer_attribute attribute, CUdeviceptr pointer) {
  if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_POINTER)
    *(CUdeviceptr *)out = pointer;
  else
    memset(out, 0, 4);
  return CUDA_SUCCESS;
}

API CUresult cuGetErrorString(CUresult result, const char **text) {
  *text = result ? "error of the fake driver" : "no error";
  return CUDA_SUCCESS;
}

API CUresult cuGetErrorName(CUresult result, const char **text) { *text = "CUDA_ERROR"; return CUDA_SUCCESS; }

SUCCEEDS(cuInit) SUCCEEDS(cuCtxSetCurrent) SUCCEEDS(cuCtxPushCurrent_v2) SUCCEEDS(cuCtxSynchronize)
SUCCEEDS(cuCtxGetLimit) SUCCEEDS(cuCtxSetLimit) SUCCEEDS(cuMemGetAddressRange_v2)
SUCCEEDS(cuStreamIsCapturing) SUCCEEDS(cuStreamSynchronize)

/* ---- modules and kernels: a kernel is its name --------------------------------------------------------- */

API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  *function = (CUfunction)strdup(name);
  return CUDA_SUCCESS;
}

API CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : attribute == CU_FUNC_ATTRIBUTE_NUM_REGS ? 64 : 0;
  return CUDA_SUCCESS;
}

API CUresult cuLaunchKernel(CUfunction f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g,
                            unsigned shared, CUstream stream, void **arguments, void **extra) {
  return launched((const char *)f);
}

API CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **arguments, void **extra) {
  return launched((const char *)f);
}

API CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e,
                                       unsigned g, unsigned shared, CUstream stream, void **arguments) {
  return launched((const char *)f);
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, CUfunction f, int block, size_t shared) {
  *n = 2;
  return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxActiveClusters(int *n, CUfunction f, const CUlaunchConfig *config) {
  *n = 2;
  return CUDA_SUCCESS;
}

static CUresult load(CUmodule *module) { *module = (CUmodule)1; return CUDA_SUCCESS; }
API CUresult cuModuleLoad(CUmodule *module, const char *path) { return load(module); }
API CUresult cuModuleLoadData(CUmodule *module, const void *image) { return load(module); }
API CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned n, CUjit_option *options, void **values) {
  return load(module);
}
SUCCEEDS(cuModuleUnload) SUCCEEDS(cuFuncSetAttribute) SUCCEEDS(cuFuncSetCacheConfig)
SUCCEEDS(cuLinkCreate_v2) SUCCEEDS(cuLinkAddData_v2) SUCCEEDS(cuLinkComplete)
SUCCEEDS(cuTensorMapEncodeTiled) SUCCEEDS(cuTensorMapEncodeIm2col)

API CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                                 CUdriverProcAddressQueryResult *result) {
  *function = dlsym(RTLD_DEFAULT, name);
  if (result) *result = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
