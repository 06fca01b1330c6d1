/* What we know of cuBLASLt's binary interface: written down here, so that no CUDA header is needed.
 *
 * Sizes and numbers are those of NVIDIA's cublasLt.h 13.1. They are held to the real library, 13.1.2 and
 * 12.8.5, by tests/pinner/test_cublaslt_real.py, which asks it for the size and the default of every
 * attribute named in layout.h. */
#ifndef PINNER_ABI_H
#define PINNER_ABI_H

#include <stddef.h>
#include <stdint.h>

/* cublasStatus_t */
enum { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };

/* cublasGemmAlgo_t: "benchmark available algorithms and choose the best, cached in the handle" */
enum { GEMM_AUTOTUNE = 999 };

/* cublasLtMatmulDescAttributes_t; those that make the key stand in layout.h */
enum { DESC_BIAS_POINTER = 8, DESC_AUX_POINTER = 11, DESC_EMULATION = 38 };

/* cublasLtMatmulAlgo_t: "can be serialised and restored for use with the same version" */
enum { ALGO_WORDS = 8 };
struct algo {
    uint64_t data[ALGO_WORDS];
};

/* cublasLtMatrixLayout_t and cublasLtMatmulPreference_t point to structs of eight words that hold their
 * whole content: programs may put them on the stack and copy them. cublasLtMatmulDesc_t grew over the
 * versions, and is only read through its functions. */
enum { SMALL_WORDS = 8 };

/* cublasLtMatmulHeuristicResult_t, 96 bytes */
struct result {
    struct algo algo;
    size_t workspace;
    int32_t state; /* a cublasStatus_t */
    float waves;
    int32_t reserved[4];
};
_Static_assert(sizeof(struct result) == 96, "cublasLtMatmulHeuristicResult_t has 96 bytes");

typedef int get_attribute(void *object, int attribute, void *value, size_t size, size_t *written);
typedef int get_config(const struct algo *algo, int attribute, void *value, size_t size, size_t *written);
typedef int set_config(struct algo *algo, int attribute, const void *value, size_t size);
typedef size_t get_version(void);
typedef int algo_init(void *handle, int compute, int scale, int a, int b, int c, int d, int id,
                      struct algo *algo);
typedef int algo_check(void *handle, void *desc, void *a, void *b, void *c, void *d,
                       const struct algo *algo, struct result *result);
typedef int get_heuristic(void *handle, void *desc, void *a, void *b, void *c, void *d,
                          void *preference, int requested, struct result *results, int *returned);
typedef int matmul(void *handle, void *desc, const void *alpha, const void *A, void *a, const void *B,
                   void *b, const void *beta, const void *C, void *c, void *D, void *d,
                   const struct algo *algo, void *workspace, size_t size, void *stream);
#endif
