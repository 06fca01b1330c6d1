/* A library that multiplies through cuBLASLt as PyTorch's CUDABlas.cpp does: ask for an algorithm, use it.
 *
 * -DBY_HANDLE looks the two functions up with dlopen and dlsym instead of being linked with them. */
#define _GNU_SOURCE 1
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { uint64_t data[8]; } algo_t;
typedef struct {
    algo_t algo;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} result_t;

int cublasLtCreate(void **);
int cublasLtDestroy(void *);
int cublasLtMatmulDescCreate(void **, int, int);
int cublasLtMatmulDescDestroy(void *);
int cublasLtMatmulDescSetAttribute(void *, int, const void *, size_t);
int cublasLtMatrixLayoutCreate(void **, int, uint64_t, uint64_t, int64_t);
int cublasLtMatrixLayoutDestroy(void *);
int cublasLtMatmulPreferenceCreate(void **);
int cublasLtMatmulPreferenceDestroy(void *);
int cublasLtMatmulPreferenceSetAttribute(void *, int, const void *, size_t);
int cublasLtMatmulAlgoInit(void *, int, int, int, int, int, int, int, algo_t *);
typedef int ask_t(void *, void *, void *, void *, void *, void *, void *, int, result_t *, int *);
typedef int multiply_t(void *, void *, const void *, const void *, void *, const void *, void *, const void *,
                       const void *, void *, void *, void *, const algo_t *, void *, size_t, void *);
#ifdef BY_HANDLE
static ask_t *ask;
static multiply_t *multiply;
__attribute__((constructor)) static void look_up(void) {
    void *library = dlopen("libcublasLt.so.13", RTLD_NOW);
    ask = (ask_t *)dlsym(library, "cublasLtMatmulAlgoGetHeuristic");
    multiply = (multiply_t *)dlsym(library, "cublasLtMatmul");
}
#define ASK ask
#define MULTIPLY multiply
#else
ask_t cublasLtMatmulAlgoGetHeuristic;
multiply_t cublasLtMatmul;
#define ASK cublasLtMatmulAlgoGetHeuristic
#define MULTIPLY cublasLtMatmul
#endif

enum { USE_FIRST = 0, USE_SMALLEST_ID = 1, USE_NULL = 2, USE_OWN = 3, USE_GIVEN = 4, ASK_ONLY = 5 };

struct call {
    int m, n, k, transa;
    int64_t workspace; /* offered */
    int align, requested, use;
    int64_t bias;      /* pointer, never read */
    int lie;           /* ask about n = 2 where n is 1 */
    int own_id;
    algo_t given;
};
struct outcome {
    int ask_status, returned, matmul_status;
    algo_t used;
};

static const algo_t *smallest(const result_t *results, int count) {
    const result_t *best = results;
    for (int i = 1; i < count; i++)
        if ((uint32_t)results[i].algo.data[0] < (uint32_t)best->algo.data[0]) best = &results[i];
    return &best->algo;
}

static void *handle_of_this_process(void) {
    static void *handle;
    if (handle == NULL) cublasLtCreate(&handle);
    return handle;
}

/* One product; matmul_status is -1 where no matmul was called. */
void consumer_gemm(const struct call *call, const float *A, const float *B, float *D, struct outcome *outcome) {
    enum { R_32F = 0, COMPUTE_32F = 68, MOST = 32 };
    void *desc, *a, *b, *d, *asked_b, *asked_d, *preference, *handle = handle_of_this_process();
    result_t results[MOST];
    algo_t own;
    const float one = 1, zero = 0;
    int rows = call->transa ? call->k : call->m, cols = call->transa ? call->m : call->k;
    int asked_n = call->lie && call->n == 1 ? 2 : call->n;
    memset(outcome, 0, sizeof *outcome);
    outcome->matmul_status = -1;
    cublasLtMatmulDescCreate(&desc, COMPUTE_32F, R_32F);
    cublasLtMatmulDescSetAttribute(desc, 3, &call->transa, 4);
    if (call->bias) cublasLtMatmulDescSetAttribute(desc, 8, &call->bias, 8);
    cublasLtMatrixLayoutCreate(&a, R_32F, (uint64_t)rows, (uint64_t)cols, rows);
    cublasLtMatrixLayoutCreate(&b, R_32F, (uint64_t)call->k, (uint64_t)call->n, call->k);
    cublasLtMatrixLayoutCreate(&d, R_32F, (uint64_t)call->m, (uint64_t)call->n, call->m);
    cublasLtMatrixLayoutCreate(&asked_b, R_32F, (uint64_t)call->k, (uint64_t)asked_n, call->k);
    cublasLtMatrixLayoutCreate(&asked_d, R_32F, (uint64_t)call->m, (uint64_t)asked_n, call->m);
    cublasLtMatmulPreferenceCreate(&preference);
    cublasLtMatmulPreferenceSetAttribute(preference, 1, &call->workspace, 8);
    for (int attribute = 5; attribute <= 8; attribute++)
        cublasLtMatmulPreferenceSetAttribute(preference, attribute, &call->align, 4);
    const algo_t *algo = call->use == USE_NULL ? NULL : call->use == USE_GIVEN ? &call->given : &own;
    if (call->use == USE_OWN) {
        cublasLtMatmulAlgoInit(handle, COMPUTE_32F, R_32F, R_32F, R_32F, R_32F, R_32F, call->own_id, &own);
    } else if (call->use != USE_NULL && call->use != USE_GIVEN) {
        int requested = call->requested < MOST ? call->requested : MOST;
        outcome->ask_status =
            ASK(handle, desc, a, asked_b, asked_d, asked_d, preference, requested, results, &outcome->returned);
        if (outcome->ask_status != 0 || outcome->returned == 0 || call->use == ASK_ONLY) goto done;
        own = call->use == USE_SMALLEST_ID ? *smallest(results, outcome->returned) : results[0].algo;
    }
    if (algo != NULL) outcome->used = *algo;
    outcome->matmul_status =
        MULTIPLY(handle, desc, &one, A, a, B, b, &zero, D, d, D, d, algo, NULL, (size_t)call->workspace, NULL);
done:
    if (outcome->ask_status == 0 && outcome->returned > 0 && call->use == ASK_ONLY) outcome->used = results[0].algo;
    cublasLtMatmulPreferenceDestroy(preference);
    cublasLtMatrixLayoutDestroy(asked_d);
    cublasLtMatrixLayoutDestroy(asked_b);
    cublasLtMatrixLayoutDestroy(d);
    cublasLtMatrixLayoutDestroy(b);
    cublasLtMatrixLayoutDestroy(a);
    cublasLtMatmulDescDestroy(desc);
}

struct work {
    int first, problems, rounds;
    int wrong;
};

/* Each problem m = 1..problems, `rounds` times, without data. */
static void *run(void *argument) {
    struct work *work = argument;
    for (int round = 0; round < work->rounds; round++)
        for (int i = 0; i < work->problems; i++) {
            struct call call = {.m = 1 + (work->first + i) % work->problems, .n = 8, .k = 16, .workspace = 1 << 20,
                                .align = 256, .requested = 1, .use = USE_FIRST};
            struct outcome outcome;
            consumer_gemm(&call, NULL, NULL, NULL, &outcome);
            work->wrong += outcome.ask_status != 0 || outcome.matmul_status != 0;
        }
    return NULL;
}

/* The same problems from `threads` threads at once, each in another order; returns failed calls. */
int consumer_threads(int threads, int problems, int rounds) {
    pthread_t thread[64];
    struct work work[64];
    int wrong = 0;
    handle_of_this_process();
    for (int i = 0; i < threads; i++) {
        work[i] = (struct work){i * 7, problems, rounds, 0};
        pthread_create(&thread[i], NULL, run, &work[i]);
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(thread[i], NULL);
        wrong += work[i].wrong;
    }
    return wrong;
}

/* Questions of one problem after another, `count` of each, for the benchmark; returns failed ones. */
int consumer_ask(int problems, int count) {
    enum { R_32F = 0, COMPUTE_32F = 68 };
    void *desc, *a, *b, *d, *preference, *handle = handle_of_this_process();
    int64_t workspace = 1 << 20;
    int wrong = 0;
    for (int i = 0; i < problems; i++) {
        result_t result;
        int returned = 0;
        uint64_t m = 1 + (uint64_t)((int64_t)i * 7919 % problems);
        cublasLtMatmulDescCreate(&desc, COMPUTE_32F, R_32F);
        cublasLtMatrixLayoutCreate(&a, R_32F, m, 16, (int64_t)m);
        cublasLtMatrixLayoutCreate(&b, R_32F, 16, 8, 16);
        cublasLtMatrixLayoutCreate(&d, R_32F, m, 8, (int64_t)m);
        cublasLtMatmulPreferenceCreate(&preference);
        cublasLtMatmulPreferenceSetAttribute(preference, 1, &workspace, 8);
        for (int j = 0; j < count; j++)
            wrong += ASK(handle, desc, a, b, d, d, preference, 1, &result, &returned) != 0 || returned != 1;
        cublasLtMatmulPreferenceDestroy(preference);
        cublasLtMatrixLayoutDestroy(d);
        cublasLtMatrixLayoutDestroy(b);
        cublasLtMatrixLayoutDestroy(a);
        cublasLtMatmulDescDestroy(desc);
    }
    return wrong;
}
