/* An NVIDIA H200 that is not there: libcudart as far as PyTorch calls it, for LD_PRELOAD.

   Memory of the device is memory of the host, and copies are made. Kernels are counted and do not run, so that a
   number that is read back is 0 (True if it has one byte). Whatever makes the host wait is counted, and is an
   error while a CUDA graph is captured, as on a device. */
#define _GNU_SOURCE
#include "fake.h"
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- the record ---------------------------------------------------------------------------------------- */

enum { LAUNCH, WAIT, PAGEABLE, UPLOAD, DOWNLOAD, COPY, MEMSET, GRAPH, CAPTURED, REFUSED, KINDS };
static const char *const kinds[KINDS] = {"launch", "wait",   "pageable", "upload",   "download",
                                         "copy",   "memset", "graph",    "captured", "refused"};
static long counts[KINDS];
static FILE *trace;
static enum { IDLE, CAPTURING, INVALID } capture;

API void fake_reset(void) { memset(counts, 0, sizeof counts); }
API int fake_counts(long *out) { memcpy(out, counts, sizeof counts); return KINDS; }
API const char *fake_kind(int kind) { return kinds[kind]; }

API void fake_trace(const char *path) {
  if (trace) fclose(trace);
  trace = *path ? fopen(path, "w") : NULL;
}

static void count(int kind, const char *what) {
  __sync_fetch_and_add(&counts[kind], 1);
  if (trace) fprintf(trace, "%s\t%s\n", kinds[kind], what);
}

API int fake_launched(const char *kernel) {
  count(capture == CAPTURING ? CAPTURED : LAUNCH, kernel);
  return 0;
}

static cudaError_t waits(const char *function) {
  if (capture == IDLE) {
    count(WAIT, function);
    return cudaSuccess;
  }
  count(REFUSED, function);
  capture = INVALID;
  return cudaErrorStreamCaptureUnsupported;
}

API void *fake_handle(void) {
  static uintptr_t last = 0x10000;
  return (void *)__sync_add_and_fetch(&last, 16);
}

/* ---- memory -------------------------------------------------------------------------------------------- */

typedef enum { PAGEABLE_MEMORY, PINNED_MEMORY, DEVICE_MEMORY } Place;
static const char *const places[] = {"pageable", "pinned", "device"};
typedef struct { uintptr_t start; size_t size; Place place; } Range;
static Range *ranges;
static size_t range_count, range_room, used;
static const size_t capacity = 150754820096;

static cudaError_t allocate(void **out, size_t size, Place place) {
  size = (size + 511) / 512 * 512 + (size == 0) * 512;
  *out = NULL;
  if (place == DEVICE_MEMORY && used + size > capacity) return cudaErrorMemoryAllocation;
  if (posix_memalign(out, 512, size)) return cudaErrorMemoryAllocation;
  if (size < 64u << 20) memset(*out, 0, size);
  pthread_mutex_lock(&lock);
  if (range_count == range_room) {
    range_room = range_room ? 2 * range_room : 1024;
    ranges = realloc(ranges, range_room * sizeof *ranges);
  }
  ranges[range_count++] = (Range){(uintptr_t)*out, size, place};
  if (place == DEVICE_MEMORY) used += size;
  pthread_mutex_unlock(&lock);
  return cudaSuccess;
}

static cudaError_t release(void *pointer) {
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < range_count; i++)
    if (ranges[i].start == (uintptr_t)pointer) {
      if (ranges[i].place == DEVICE_MEMORY) used -= ranges[i].size;
      ranges[i] = ranges[--range_count];
      break;
    }
  pthread_mutex_unlock(&lock);
  free(pointer);
  return cudaSuccess;
}

static Place place_of(const void *pointer) {
  Place place = PAGEABLE_MEMORY;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < range_count; i++)
    if ((uintptr_t)pointer - ranges[i].start < ranges[i].size) {
      place = ranges[i].place;
      break;
    }
  pthread_mutex_unlock(&lock);
  return place;
}

static void copy(void *to, const void *from, size_t size) {
  Place source = place_of(from), target = place_of(to);
  char text[64];
  snprintf(text, sizeof text, "%s to %s, %zu bytes", places[source], places[target], size);
  count(target != DEVICE_MEMORY ? DOWNLOAD : source != DEVICE_MEMORY ? UPLOAD : COPY, text);
  if (target == DEVICE_MEMORY && source == PAGEABLE_MEMORY) count(PAGEABLE, text);
  if (capture != IDLE) return;
  if (source == DEVICE_MEMORY && target != DEVICE_MEMORY && size <= 8)
    memset(to, size == 1, size); /* no kernel has computed it */
  else
    memmove(to, from, size);
}

API cudaError_t cudaMalloc(void **p, size_t n) { return allocate(p, n, DEVICE_MEMORY); }
API cudaError_t cudaMallocAsync(void **p, size_t n, cudaStream_t s) { return allocate(p, n, DEVICE_MEMORY); }
API cudaError_t cudaMallocManaged(void **p, size_t n, unsigned f) { return allocate(p, n, DEVICE_MEMORY); }
API cudaError_t cudaMallocHost(void **p, size_t n) { return allocate(p, n, PINNED_MEMORY); }
API cudaError_t cudaHostAlloc(void **p, size_t n, unsigned f) { return allocate(p, n, PINNED_MEMORY); }
API cudaError_t cudaFree(void *p) { return p ? release(p) : cudaSuccess; }
API cudaError_t cudaFreeAsync(void *p, cudaStream_t s) { return cudaFree(p); }
API cudaError_t cudaFreeHost(void *p) { return cudaFree(p); }

API cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
  *free_bytes = capacity - used;
  *total = capacity;
  return cudaSuccess;
}

API cudaError_t cudaMemcpy(void *to, const void *from, size_t n, enum cudaMemcpyKind k) {
  cudaError_t error = waits("cudaMemcpy");
  if (!error) copy(to, from, n);
  return error;
}

API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind k, cudaStream_t s) {
  copy(to, from, n);
  return cudaSuccess;
}

API cudaError_t cudaMemcpyPeerAsync(void *to, int d, const void *from, int e, size_t n, cudaStream_t s) {
  copy(to, from, n);
  return cudaSuccess;
}

API cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                                  size_t height, enum cudaMemcpyKind k, cudaStream_t s) {
  for (size_t row = 0; row < height; row++)
    memmove((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
  return cudaSuccess;
}

API cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t s) {
  count(MEMSET, "");
  if (capture == IDLE) memset(p, value, n);
  return cudaSuccess;
}

API cudaError_t cudaMemset(void *p, int value, size_t n) { return cudaMemsetAsync(p, value, n, NULL); }

API cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *pointer) {
  static const enum cudaMemoryType types[] = {cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice};
  Place place = place_of(pointer);
  memset(out, 0, sizeof *out);
  out->type = types[place];
  *(place == DEVICE_MEMORY ? &out->devicePointer : &out->hostPointer) = (void *)pointer;
  return cudaSuccess;
}

SUCCEEDS(cudaMemcpyToSymbol) SUCCEEDS(cudaHostRegister) SUCCEEDS(cudaHostUnregister)

/* ---- the device ---------------------------------------------------------------------------------------- */

API cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
  memset(p, 0, sizeof *p);
  strcpy(p->name, "NVIDIA H200 (fake)");
  p->totalGlobalMem = capacity;
  p->major = 9;
  p->multiProcessorCount = 132;
  p->sharedMemPerBlock = 49152;
  p->sharedMemPerBlockOptin = 232448;
  p->sharedMemPerMultiprocessor = 233472;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->warpSize = p->maxBlocksPerMultiProcessor = 32;
  p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxThreadsPerMultiProcessor = 2048;
  p->maxGridSize[0] = p->memPitch = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->l2CacheSize = 62914560;
  p->concurrentKernels = p->unifiedAddressing = 1;
  p->textureAlignment = 512;
  return cudaSuccess;
}

API cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  struct cudaDeviceProp p;
  cudaGetDeviceProperties(&p, device);
  switch ((int)attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
    case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: *value = p.maxThreadsDim[0]; break;
    case cudaDevAttrMaxBlockDimZ: *value = p.maxThreadsDim[2]; break;
    case cudaDevAttrMaxGridDimX: *value = p.maxGridSize[0]; break;
    case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *value = p.maxGridSize[1]; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = p.sharedMemPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = p.sharedMemPerBlockOptin; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = p.sharedMemPerMultiprocessor; break;
    case cudaDevAttrWarpSize: *value = p.warpSize; break;
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrMaxRegistersPerBlock: case cudaDevAttrMaxRegistersPerMultiprocessor: *value = p.regsPerBlock; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = p.maxBlocksPerMultiProcessor; break;
    case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrCooperativeLaunch: *value = 1; break;
    default: *value = 0;
  }
  return cudaSuccess;
}

API cudaError_t cudaGetDeviceCount(int *count) { *count = 1; return cudaSuccess; }
API cudaError_t cudaGetDevice(int *device) { *device = 0; return cudaSuccess; }
API cudaError_t cudaSetDevice(int device) { return device ? cudaErrorInvalidDevice : cudaSuccess; }
API cudaError_t cudaDriverGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
API cudaError_t cudaRuntimeGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
API cudaError_t cudaDeviceSynchronize(void) { return waits("cudaDeviceSynchronize"); }
API cudaError_t cudaDeviceCanAccessPeer(int *can, int a, int b) { *can = 0; return cudaSuccess; }
API cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) { *pool = fake_handle(); return cudaSuccess; }

API cudaError_t cudaDeviceGetPCIBusId(char *out, int n, int device) {
  snprintf(out, n, "0000:00:00.0");
  return cudaSuccess;
}

API cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}

API const char *cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorStreamCaptureUnsupported ? "cudaErrorStreamCaptureUnsupported" : "cudaError";
}

API const char *cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    default: return "error of the fake device";
  }
}

API cudaError_t cudaGetSymbolAddress(void **out, const void *symbol) {
  static char room[1 << 16];
  *out = room;
  return cudaSuccess;
}

SUCCEEDS(cudaDeviceEnablePeerAccess) SUCCEEDS(cudaGetLastError) SUCCEEDS(cudaPeekAtLastError)
SUCCEEDS(cudaProfilerStart) SUCCEEDS(cudaProfilerStop)

/* ---- streams, events, graphs --------------------------------------------------------------------------- */

MAKES(cudaStreamCreate) MAKES(cudaStreamCreateWithFlags) MAKES(cudaStreamCreateWithPriority)
MAKES(cudaEventCreate) MAKES(cudaEventCreateWithFlags)
MAKES(cudaGraphInstantiate) MAKES(cudaGraphInstantiateWithFlags) MAKES(cudaUserObjectCreate)
SUCCEEDS(cudaStreamDestroy) SUCCEEDS(cudaStreamQuery) SUCCEEDS(cudaStreamWaitEvent)
SUCCEEDS(cudaEventDestroy) SUCCEEDS(cudaEventRecord) SUCCEEDS(cudaEventRecordWithFlags) SUCCEEDS(cudaEventQuery)
SUCCEEDS(cudaGraphDestroy) SUCCEEDS(cudaGraphExecDestroy)
SUCCEEDS(cudaUserObjectRelease) SUCCEEDS(cudaGraphRetainUserObject) SUCCEEDS(cudaThreadExchangeStreamCaptureMode)

API cudaError_t cudaStreamSynchronize(cudaStream_t s) { return waits("cudaStreamSynchronize"); }
API cudaError_t cudaEventSynchronize(cudaEvent_t e) { return waits("cudaEventSynchronize"); }
API cudaError_t cudaStreamGetPriority(cudaStream_t s, int *priority) { *priority = 0; return cudaSuccess; }
API cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b) { *ms = 0.01f; return cudaSuccess; }
API cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *nodes, size_t *n) { *n = 1; return cudaSuccess; }
API cudaError_t cudaGraphLaunch(cudaGraphExec_t g, cudaStream_t s) { count(GRAPH, ""); return cudaSuccess; }

API cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t function, void *data) {
  function(data);
  return cudaSuccess;
}

API cudaError_t cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t function, void *data, unsigned flags) {
  function(s, cudaSuccess, data);
  return cudaSuccess;
}

API cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode) {
  capture = CAPTURING;
  return cudaSuccess;
}

API cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t s, cudaGraph_t g, const cudaGraphNode_t *nodes,
                                              const cudaGraphEdgeData *edges, size_t n,
                                              enum cudaStreamCaptureMode mode) {
  return cudaStreamBeginCapture(s, mode);
}

API cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph) {
  int valid = capture == CAPTURING;
  capture = IDLE;
  *graph = valid ? fake_handle() : NULL;
  return valid ? cudaSuccess : cudaErrorStreamCaptureInvalidated;
}

API cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *out) {
  static const enum cudaStreamCaptureStatus status[] = {
      cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive, cudaStreamCaptureStatusInvalidated};
  *out = status[capture];
  return cudaSuccess;
}

API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *status,
                                         unsigned long long *id, cudaGraph_t *graph, const cudaGraphNode_t **nodes,
                                         const cudaGraphEdgeData **edges, size_t *n) {
  if (id) *id = 1;
  if (graph) *graph = (cudaGraph_t)1;
  if (nodes) *nodes = NULL;
  if (edges) *edges = NULL;
  if (n) *n = 0;
  return cudaStreamIsCapturing(s, status);
}

/* ---- kernels: their names are registered when torch's libraries are loaded ----------------------------- */

enum { SLOTS = 1 << 19, NESTED = 16 };
static const void *functions[SLOTS];
static const char *names[SLOTS];

static unsigned slot_of(const void *function) {
  unsigned slot = (uintptr_t)function * 0x9E3779B97F4A7C15 >> 45;
  while (functions[slot] && functions[slot] != function) slot = (slot + 1) % SLOTS;
  return slot;
}

API void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit,
                                uint3 *a, uint3 *b, dim3 *c, dim3 *d, int *warp) {
  pthread_mutex_lock(&lock);
  unsigned slot = slot_of(host);
  functions[slot] = host;
  names[slot] = name;
  pthread_mutex_unlock(&lock);
}

API void **__cudaRegisterFatBinary(void *binary) { static void *handle; return &handle; }
SUCCEEDS(__cudaRegisterFatBinaryEnd) SUCCEEDS(__cudaUnregisterFatBinary) SUCCEEDS(__cudaRegisterVar)

typedef struct { dim3 grid, block; size_t shared; cudaStream_t stream; } Shape;
static __thread Shape shapes[NESTED];
static __thread int depth;

API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  if (depth < NESTED) shapes[depth++] = (Shape){grid, block, shared, stream};
  return 0;
}

API cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  if (!depth) return cudaErrorInvalidConfiguration;
  Shape shape = shapes[--depth];
  *grid = shape.grid;
  *block = shape.block;
  *shared = shape.shared;
  *(cudaStream_t *)stream = shape.stream;
  return cudaSuccess;
}

static cudaError_t launch(dim3 grid, dim3 block, size_t shared, const void *function) {
  int grid_fits = grid.x && grid.y && grid.z && grid.y <= 65535 && grid.z <= 65535;
  if (!grid_fits || block.x * block.y * block.z > 1024 || shared > 232448) return cudaErrorInvalidConfiguration;
  const char *name = names[slot_of(function)];
  return fake_launched(name ? name : "?");
}

API cudaError_t cudaLaunchKernel(const void *f, dim3 g, dim3 b, void **arguments, size_t shared, cudaStream_t s) {
  return launch(g, b, shared, f);
}

API cudaError_t __cudaLaunchKernel(cudaKernel_t k, dim3 g, dim3 b, void **arguments, size_t shared, cudaStream_t s) {
  return launch(g, b, shared, k);
}

API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *f, void **arguments) {
  return launch(c->gridDim, c->blockDim, c->dynamicSmemBytes, f);
}

API cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) {
  *kernel = (cudaKernel_t)function;
  return cudaSuccess;
}

API cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *function) {
  memset(out, 0, sizeof *out);
  out->maxThreadsPerBlock = 1024;
  out->numRegs = 32;
  out->binaryVersion = out->ptxVersion = 90;
  out->maxDynamicSharedSizeBytes = 232448;
  return cudaSuccess;
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *f, int block, size_t shared) {
  *n = 2;
  return cudaSuccess;
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int block,
                                                                       size_t shared, unsigned flags) {
  *n = 2;
  return cudaSuccess;
}

SUCCEEDS(cudaFuncSetAttribute) SUCCEEDS(cudaKernelSetAttributeForDevice)
API int fake_nothing(void) { return 0; }

API cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                                 unsigned long long flags,
                                                 enum cudaDriverEntryPointQueryResult *result) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  *function = driver ? dlsym(driver, name) : NULL;
  if (!*function) *function = (void *)fake_nothing;
  if (result) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
