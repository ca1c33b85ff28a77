/* cuBLAS and cuDNN of the fake device, as far as PyTorch calls them: each product, convolution and batch norm is one
   kernel. */
#include "fake.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

MAKES(cublasCreate_v2) MAKES(cublasLtMatmulDescCreate) MAKES(cublasLtMatmulPreferenceCreate)
MAKES(cublasLtMatrixLayoutCreate)
SUCCEEDS(cublasDestroy_v2) SUCCEEDS(cublasSetMathMode) SUCCEEDS(cublasSetPointerMode_v2) SUCCEEDS(cublasSetStream_v2)
SUCCEEDS(cublasSetWorkspace_v2) SUCCEEDS(cublasSetSmCountTarget)
SUCCEEDS(cublasLtMatmulDescDestroy) SUCCEEDS(cublasLtMatmulDescSetAttribute)
SUCCEEDS(cublasLtMatmulPreferenceDestroy) SUCCEEDS(cublasLtMatmulPreferenceSetAttribute)
SUCCEEDS(cublasLtMatrixLayoutDestroy) SUCCEEDS(cublasLtMatrixLayoutSetAttribute)
LAUNCHES(cublasSgemm_v2) LAUNCHES(cublasDgemm_v2) LAUNCHES(cublasGemmEx) LAUNCHES(cublasSgemmEx)
LAUNCHES(cublasSgemmStridedBatched) LAUNCHES(cublasDgemmStridedBatched) LAUNCHES(cublasGemmStridedBatchedEx)
LAUNCHES(cublasSgemv_v2) LAUNCHES(cublasDgemv_v2) LAUNCHES(cublasSdot_v2) LAUNCHES(cublasDdot_v2)
LAUNCHES(cublasDotEx) LAUNCHES(cublasLtMatmul)

API int cublasGetMathMode(void *handle, int *mode) { *mode = 0; return 0; }
API int cublasGetPointerMode_v2(void *handle, int *mode) { *mode = 0; return 0; }

API int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d,
                                       void *preference, int asked, void *results, int *found) {
  memset(results, 0, 96); /* one cublasLtMatmulHeuristicResult_t */
  *found = 1;
  return 0;
}

MAKES(cudnnCreate) MAKES(cudnnCreateTensorDescriptor) MAKES(cudnnCreateActivationDescriptor)
MAKES(cudnnCreateFilterDescriptor) MAKES(cudnnCreateConvolutionDescriptor)
SUCCEEDS(cudnnSetStream) SUCCEEDS(cudnnSetTensorNdDescriptor) SUCCEEDS(cudnnDestroyTensorDescriptor)
SUCCEEDS(cudnnSetFilterNdDescriptor) SUCCEEDS(cudnnDestroyFilterDescriptor)
SUCCEEDS(cudnnSetActivationDescriptor) SUCCEEDS(cudnnDestroyActivationDescriptor)
LAUNCHES(cudnnBatchNormalizationForwardTrainingEx) LAUNCHES(cudnnBatchNormalizationBackwardEx)
LAUNCHES(cudnnBatchNormalizationForwardInference) LAUNCHES(cudnnBackendExecute)

API int cudnnGetStream(void *handle, void **stream) { *stream = 0; return 0; } /* asked for by cudnn.benchmark */

API const char *cudnnGetErrorString(int status) { return "error of the fake cuDNN"; }

API int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *a, int b, int c, void *d, void *e, void *f,
                                                                 void *g, void *h, size_t *size) {
  *size = 0;
  return 0;
}

API int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *a, int b, int c, void *d, void *e, void *f, void *g,
                                                          void *h, void *i, void *j, size_t *size) {
  *size = 0;
  return 0;
}

API int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *a, int b, int c, void *d, void *e, size_t *size) {
  *size = 0;
  return 0;
}

/* Convolutions use the backend's descriptors, of which only one kind of attribute has a count that is asked for. */
enum { TYPE_INT64 = 3, TYPE_DESCRIPTOR = 15 };

API int cudnnBackendCreateDescriptor(int type, void **made) {
  *made = calloc(1, 64);
  return 0;
}

API int cudnnBackendDestroyDescriptor(void *descriptor) { return 0; }
SUCCEEDS(cudnnBackendFinalize) SUCCEEDS(cudnnBackendSetAttribute)

API int cudnnBackendGetAttribute(void *descriptor, int name, int type, int64_t asked, int64_t *count, void *out) {
  if (count) *count = type == TYPE_INT64 || type == TYPE_DESCRIPTOR;
  if (out && asked > 0 && type != TYPE_DESCRIPTOR) memset(out, 0, 8);
  return 0;
}
