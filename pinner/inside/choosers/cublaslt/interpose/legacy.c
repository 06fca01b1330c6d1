/* Counts calls of libcublas's own GEMMs: what they choose inside cannot be held, only named.
 *
 * Each wrapper counts and calls the real function with the same arguments. The prototypes are those of
 * NVIDIA's cublas_api.h 13.1: INT is int, or int64_t for the names that end in _64. The interface
 * before "v2" (cublasSgemm without a handle) is left alone. */
#include <stdio.h>
#include <string.h>

#include "inner.h"

typedef const void *in;
typedef void *out;
typedef const void *const *ins;
typedef void *const *outs;
typedef long long stride;

/* h: handle; t, u: transpositions; p, q: alpha and beta; i, j, l: types of A, B, C; s, v, w: strides */
#define PARAMS_GEMM(INT) (void *h, int t, int u, INT m, INT n, INT k, in p, in A, INT a, in B, INT b, in q, out C, INT c)
#define ARGS_GEMM (h, t, u, m, n, k, p, A, a, B, b, q, C, c)
#define ALGO_GEMM 0

#define PARAMS_GEMV(INT) (void *h, int t, INT m, INT n, in p, in A, INT a, in x, INT dx, in q, out y, INT dy)
#define ARGS_GEMV (h, t, m, n, p, A, a, x, dx, q, y, dy)
#define ALGO_GEMV 0

#define PARAMS_BATCHED(INT) (void *h, int t, int u, INT m, INT n, INT k, in p, ins A, INT a, ins B, INT b, in q, outs C, INT c, INT batch)
#define ARGS_BATCHED (h, t, u, m, n, k, p, A, a, B, b, q, C, c, batch)
#define ALGO_BATCHED 0

#define PARAMS_STRIDED(INT) (void *h, int t, int u, INT m, INT n, INT k, in p, in A, INT a, stride s, in B, INT b, stride v, in q, out C, INT c, stride w, INT batch)
#define ARGS_STRIDED (h, t, u, m, n, k, p, A, a, s, B, b, v, q, C, c, w, batch)
#define ALGO_STRIDED 0

#define PARAMS_TYPED(INT) (void *h, int t, int u, INT m, INT n, INT k, in p, in A, int i, INT a, in B, int j, INT b, in q, out C, int l, INT c)
#define ARGS_TYPED (h, t, u, m, n, k, p, A, i, a, B, j, b, q, C, l, c)
#define ALGO_TYPED 0

#define PARAMS_EX(INT) (void *h, int t, int u, INT m, INT n, INT k, in p, in A, int i, INT a, in B, int j, INT b, in q, out C, int l, INT c, int compute, int algo)
#define ARGS_EX (h, t, u, m, n, k, p, A, i, a, B, j, b, q, C, l, c, compute, algo)
#define ALGO_EX algo

#define PARAMS_BATCHED_EX(INT) (void *h, int t, int u, INT m, INT n, INT k, in p, ins A, int i, INT a, ins B, int j, INT b, in q, outs C, int l, INT c, INT batch, int compute, int algo)
#define ARGS_BATCHED_EX (h, t, u, m, n, k, p, A, i, a, B, j, b, q, C, l, c, batch, compute, algo)
#define ALGO_BATCHED_EX algo

#define PARAMS_STRIDED_EX(INT) (void *h, int t, int u, INT m, INT n, INT k, in p, in A, int i, INT a, stride s, in B, int j, INT b, stride v, in q, out C, int l, INT c, stride w, INT batch, int compute, int algo)
#define ARGS_STRIDED_EX (h, t, u, m, n, k, p, A, i, a, s, B, j, b, v, q, C, l, c, w, batch, compute, algo)
#define ALGO_STRIDED_EX algo

#define PARAMS_GROUPED(INT) (void *h, const int *t, const int *u, const INT *m, const INT *n, const INT *k, in p, ins A, const INT *a, ins B, const INT *b, in q, outs C, const INT *c, INT groups, const INT *sizes)
#define ARGS_GROUPED (h, t, u, m, n, k, p, A, a, B, b, q, C, c, groups, sizes)
#define ALGO_GROUPED 0

#define PARAMS_GROUPED_EX(INT) (void *h, const int *t, const int *u, const INT *m, const INT *n, const INT *k, in p, ins A, int i, const INT *a, ins B, int j, const INT *b, in q, outs C, int l, const INT *c, INT groups, const INT *sizes, int compute)
#define ARGS_GROUPED_EX (h, t, u, m, n, k, p, A, i, a, B, j, b, q, C, l, c, groups, sizes, compute)
#define ALGO_GROUPED_EX 0

#define BOTH(W, shape, name) W(shape, name, int) W(shape, name##_64, int64_t)

#define LEGACY(W)                                                                                  \
    BOTH(W, GEMM, cublasSgemm_v2)                                                                  \
    BOTH(W, GEMM, cublasDgemm_v2)                                                                  \
    BOTH(W, GEMM, cublasCgemm_v2)                                                                  \
    BOTH(W, GEMM, cublasZgemm_v2)                                                                  \
    BOTH(W, GEMM, cublasHgemm)                                                                     \
    BOTH(W, GEMM, cublasCgemm3m)                                                                   \
    BOTH(W, GEMM, cublasZgemm3m)                                                                   \
    BOTH(W, GEMV, cublasSgemv_v2)                                                                  \
    BOTH(W, GEMV, cublasDgemv_v2)                                                                  \
    BOTH(W, GEMV, cublasCgemv_v2)                                                                  \
    BOTH(W, GEMV, cublasZgemv_v2)                                                                  \
    BOTH(W, BATCHED, cublasSgemmBatched)                                                           \
    BOTH(W, BATCHED, cublasDgemmBatched)                                                           \
    BOTH(W, BATCHED, cublasCgemmBatched)                                                           \
    BOTH(W, BATCHED, cublasZgemmBatched)                                                           \
    BOTH(W, BATCHED, cublasHgemmBatched)                                                           \
    BOTH(W, BATCHED, cublasCgemm3mBatched)                                                         \
    BOTH(W, STRIDED, cublasSgemmStridedBatched)                                                    \
    BOTH(W, STRIDED, cublasDgemmStridedBatched)                                                    \
    BOTH(W, STRIDED, cublasCgemmStridedBatched)                                                    \
    BOTH(W, STRIDED, cublasZgemmStridedBatched)                                                    \
    BOTH(W, STRIDED, cublasHgemmStridedBatched)                                                    \
    BOTH(W, STRIDED, cublasCgemm3mStridedBatched)                                                  \
    BOTH(W, TYPED, cublasSgemmEx)                                                                  \
    BOTH(W, TYPED, cublasCgemmEx)                                                                  \
    BOTH(W, TYPED, cublasCgemm3mEx)                                                                \
    BOTH(W, EX, cublasGemmEx)                                                                      \
    BOTH(W, BATCHED_EX, cublasGemmBatchedEx)                                                       \
    BOTH(W, STRIDED_EX, cublasGemmStridedBatchedEx)                                                \
    BOTH(W, GROUPED, cublasSgemmGroupedBatched)                                                    \
    BOTH(W, GROUPED, cublasDgemmGroupedBatched)                                                    \
    BOTH(W, GROUPED_EX, cublasGemmGroupedBatchedEx)

#define AS_NUMBER(shape, name, INT) SYMBOL_##name,
enum { LEGACY(AS_NUMBER) SYMBOL_END };
_Static_assert((int)SYMBOL_END <= (int)SYMBOLS, "the map has room for every counted symbol");

#define AS_NAME(shape, name, INT) #name,
static const char *const NAMES[] = {LEGACY(AS_NAME)};

void name_symbols(struct map *map) {
    map->symbols = SYMBOL_END;
    for (int i = 0; i < SYMBOL_END; i++)
        snprintf(map->symbol[i].name, sizeof map->symbol[i].name, "%s", NAMES[i]);
}

static void tell(int number, int status) {
    struct call *call = is_following() ? next_call() : NULL;
    if (call == NULL) return;
    call->status = status;
    snprintf(call->symbol, sizeof call->symbol, "%s", NAMES[number]);
    call_is_made();
}

static void count(int number, int algo) {
    struct map *map = current_map();
    if (map == NULL) return;
    add(&map->symbol[number].calls);
    __atomic_store_n(&map->ambiguous, ambiguous_calls(), __ATOMIC_RELAXED);
    if (algo == GEMM_AUTOTUNE) add(&map->symbol[number].autotuned);
}

#define WRAP(shape, name, INT)                                                                     \
    EXPORTED int name PARAMS_##shape(INT) {                                                        \
        typedef int function PARAMS_##shape(INT);                                                  \
        function *real =                                                                           \
            (function *)legacy_function(__builtin_return_address(0), SYMBOL_##name, #name);        \
        if (real == NULL) return NOT_INITIALIZED;                                                  \
        int outer = inside_legacy;                                                                 \
        if (!outer) count(SYMBOL_##name, ALGO_##shape);                                            \
        inside_legacy = 1;                                                                         \
        int status = real ARGS_##shape;                                                            \
        inside_legacy = outer;                                                                     \
        if (!outer) tell(SYMBOL_##name, status);                                                   \
        return status;                                                                             \
    }
LEGACY(WRAP)
