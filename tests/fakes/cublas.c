/* Stands in for libcublas.so.N: one legacy function of each shape, which keeps the arguments it got.
 *
 * cublasGemmEx also calls the public cublasLtMatmul, as the real libcublas may. */
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#ifndef VERSION
#define VERSION 130200
#endif

int cublasLtMatmul(void *, void *, const void *, const void *, void *, const void *, void *, const void *,
                   const void *, void *, void *, void *, const void *, void *, size_t, void *);

static int64_t kept[40];
static int count;

/* Argument `n` of the last call; the number of arguments for -1, our version for -2. */
int64_t fake_cublas_argument(int n) { return n == -1 ? count : n == -2 ? VERSION : kept[n]; }

#define KEEP(...)                                                                                  \
    do {                                                                                           \
        int64_t list[] = {__VA_ARGS__};                                                            \
        count = sizeof list / sizeof *list;                                                        \
        memcpy(kept, list, sizeof list);                                                           \
    } while (0)
#define P(pointer) (int64_t)(intptr_t)(pointer)

int cublasSgemm_v2(void *h, int t, int u, int m, int n, int k, const float *p, const float *A, int a, const float *B,
                   int b, const float *q, float *C, int c) {
    KEEP(P(h), t, u, m, n, k, P(p), P(A), a, P(B), b, P(q), P(C), c);
    return 41;
}
int cublasSgemm_v2_64(void *h, int t, int u, int64_t m, int64_t n, int64_t k, const float *p, const float *A,
                      int64_t a, const float *B, int64_t b, const float *q, float *C, int64_t c) {
    KEEP(P(h), t, u, m, n, k, P(p), P(A), a, P(B), b, P(q), P(C), c);
    return 41;
}
int cublasDgemv_v2(void *h, int t, int m, int n, const double *p, const double *A, int a, const double *x, int dx,
                   const double *q, double *y, int dy) {
    KEEP(P(h), t, m, n, P(p), P(A), a, P(x), dx, P(q), P(y), dy);
    return 41;
}
int cublasHgemmBatched(void *h, int t, int u, int m, int n, int k, const void *p, const void *const A[], int a,
                       const void *const B[], int b, const void *q, void *const C[], int c, int batch) {
    KEEP(P(h), t, u, m, n, k, P(p), P(A), a, P(B), b, P(q), P(C), c, batch);
    return 41;
}
int cublasSgemmStridedBatched(void *h, int t, int u, int m, int n, int k, const float *p, const float *A, int a,
                              long long s, const float *B, int b, long long v, const float *q, float *C, int c,
                              long long w, int batch) {
    KEEP(P(h), t, u, m, n, k, P(p), P(A), a, s, P(B), b, v, P(q), P(C), c, w, batch);
    return 41;
}
int cublasSgemmEx(void *h, int t, int u, int m, int n, int k, const float *p, const void *A, int i, int a,
                  const void *B, int j, int b, const float *q, void *C, int l, int c) {
    KEEP(P(h), t, u, m, n, k, P(p), P(A), i, a, P(B), j, b, P(q), P(C), l, c);
    return 41;
}
int cublasGemmEx(void *h, int t, int u, int m, int n, int k, const void *p, const void *A, int i, int a, const void *B,
                 int j, int b, const void *q, void *C, int l, int c, int compute, int algo) {
    static const uint64_t own_algo[8];
    cublasLtMatmul(h, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, own_algo, 0, 0, 0);
    KEEP(P(h), t, u, m, n, k, P(p), P(A), i, a, P(B), j, b, P(q), P(C), l, c, compute, algo);
    return 41;
}
int cublasGemmBatchedEx(void *h, int t, int u, int m, int n, int k, const void *p, const void *const A[], int i, int a,
                        const void *const B[], int j, int b, const void *q, void *const C[], int l, int c, int batch,
                        int compute, int algo) {
    KEEP(P(h), t, u, m, n, k, P(p), P(A), i, a, P(B), j, b, P(q), P(C), l, c, batch, compute, algo);
    return 41;
}
int cublasGemmStridedBatchedEx(void *h, int t, int u, int m, int n, int k, const void *p, const void *A, int i, int a,
                               long long s, const void *B, int j, int b, long long v, const void *q, void *C, int l,
                               int c, long long w, int batch, int compute, int algo) {
    KEEP(P(h), t, u, m, n, k, P(p), P(A), i, a, s, P(B), j, b, v, P(q), P(C), l, c, w, batch, compute, algo);
    return 41;
}
int cublasSgemmGroupedBatched(void *h, const int *t, const int *u, const int *m, const int *n, const int *k,
                              const float *p, const float *const A[], const int *a, const float *const B[],
                              const int *b, const float *q, float *const C[], const int *c, int groups,
                              const int *sizes) {
    KEEP(P(h), P(t), P(u), P(m), P(n), P(k), P(p), P(A), P(a), P(B), P(b), P(q), P(C), P(c), groups, P(sizes));
    return 41;
}
int cublasGemmGroupedBatchedEx(void *h, const int *t, const int *u, const int *m, const int *n, const int *k,
                               const void *p, const void *const A[], int i, const int *a, const void *const B[],
                               int j, const int *b, const void *q, void *const C[], int l, const int *c, int groups,
                               const int *sizes, int compute) {
    KEEP(P(h), P(t), P(u), P(m), P(n), P(k), P(p), P(A), i, P(a), P(B), j, P(b), P(q), P(C), l, P(c), groups, P(sizes), compute);
    return 41;
}
