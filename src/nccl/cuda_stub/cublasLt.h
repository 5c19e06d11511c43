// Stands in for the library's own header where that is not installed. LibTorch's CUDA headers only
// pass this handle on.
#pragma once

typedef struct cublasLtContext* cublasLtHandle_t;
