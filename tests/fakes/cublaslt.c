/* Stands in for libcublasLt.so.N: its public functions, on the CPU, with an algorithm that matters.
 *
 * Built with -DVERSION=130200 and the soname of that version. Each problem has ALTERNATIVES algorithms;
 * each splits the sum over k differently, so that the bits of a product show which one ran. What
 * FAKE_CUBLASLT says, in words between commas:
 *
 *   pick=N           the heuristic's first answer is alternative N (0 without it)
 *   random           it is another one in each process
 *   shuffle          several answers come in another order in each process
 *   fail-ask=N       question number N, counted from 1, returns an error
 *   fail-check=N     AlgoCheck number N refuses
 *   fail-matmul=N    matmul number N returns an error
 *   none             the heuristic knows no algorithm
 *   greedy           every algorithm needs 1 GiB of workspace
 *   backwards        every algorithm sums from the end: other bits by the same algorithm
 *
 * tests/pinner/test_cublaslt_real.py holds its names, sizes and attributes to the real library's. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifndef VERSION
#define VERSION 130200
#endif

enum { OK = 0, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum { ALTERNATIVES = 6, FIRST_ID = 60 };

typedef struct { uint64_t data[8]; } algo_t;
typedef struct {
    algo_t algo;
    size_t workspaceSize;
    int state;
    float wavesCount;
    int reserved[4];
} result_t;

struct attribute { int number, size; int64_t value; };
struct object { uint64_t data[32]; }; /* of which layouts and preferences use the first eight */
struct place { int size, at; };       /* size 0: there is no such attribute */

static const struct attribute DESC[] = {
    {0, 4, 0}, {1, 4, 0}, {2, 4, 0}, {3, 4, 0}, {4, 4, 0}, {5, 4, 0}, {6, 4, 2}, {7, 4, 1}, {8, 8, 0},
    {10, 8, 0}, {11, 8, 0}, {12, 8, 0}, {13, 8, 0}, {14, 8, 0}, {15, 4, 0}, {17, 8, 0}, {18, 8, 0},
    {16, 4, 0},
    {19, 8, 0}, {20, 8, 0}, {21, 8, 0}, {22, 4, -1}, {23, 8, 0}, {24, 8, 0}, {25, 1, 0}, {26, 4, -1},
#if VERSION < 130000
    {27, 4, 0}, {28, 4, 0}, {29, 8, 0}, {30, 8, 0},
#endif
#if VERSION >= 120805
    {31, 4, 0}, {32, 4, 0}, {33, 4, 0}, {34, 4, 0}, {35, 4, 0}, {36, 8, 0}, {37, 4, 0},
#endif
#if VERSION >= 130100
    {38, 8, 0},
#endif
};
static const struct attribute LAYOUT[] = {
    {0, 4, 0}, {1, 4, 0}, {2, 8, 0}, {3, 8, 0}, {4, 8, 0}, {5, 4, 1}, {6, 8, 0}, {7, 8, 0}, {8, 4, 0},
};
static const struct attribute PREFERENCE[] = {
    {0, 4, 0}, {1, 8, 0}, {3, 4, 7}, {5, 4, 256}, {6, 4, 256}, {7, 4, 256}, {8, 4, 256}, {9, 4, 0}, {12, 8, -1},
};
#if VERSION >= 130100
static const struct attribute EMULATION[] = {
    {0, 4, 0}, {1, 4, 0xffff}, {2, 4, 0}, {3, 4, 0}, {4, 4, 0}, {5, 8, 0},
};
#endif

static int asked, checked, multiplied;

/* Calls that arrived here: questions, checks, matmuls. */
int fake_cublaslt_calls(int which) { return which == 0 ? asked : which == 1 ? checked : multiplied; }

static const char *word(const char *wanted) {
    const char *all = getenv("FAKE_CUBLASLT");
    size_t length = strlen(wanted);
    while (all != NULL && *all) {
        if (strncmp(all, wanted, length) == 0 && (all[length] == ',' || all[length] == '=' || !all[length]))
            return all[length] == '=' ? all + length + 1 : all + length;
        all = strchr(all, ',');
        if (all != NULL) all++;
    }
    return NULL;
}
static int number(const char *wanted, int otherwise) {
    const char *found = word(wanted);
    return found == NULL ? otherwise : atoi(found);
}
static unsigned seed(void) {
    static unsigned value;
    if (value == 0) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        value = (unsigned)(now.tv_nsec ^ getpid() * 2654435761u) | 1;
    }
    return value;
}
static int first_pick(void) {
    if (word("random")) return (int)(seed() / 7 % ALTERNATIVES);
    return number("pick", 0) % ALTERNATIVES;
}

static struct place DESC_PLACES[64], LAYOUT_PLACES[64], PREFERENCE_PLACES[64];
#if VERSION >= 130100
static struct place EMULATION_PLACES[64];
#endif

/* Wide attributes first, so that nothing is left between them. */
static void lay_out(struct place *places, const struct attribute *list, size_t size) {
    int at = 0;
    for (int width = 8; width >= 1; width /= 2)
        for (size_t i = 0; i < size / sizeof *list; i++)
            if (list[i].size == width) {
                places[list[i].number] = (struct place){width, at};
                at += width;
            }
}
__attribute__((constructor)) static void lay_all_out(void) {
    lay_out(DESC_PLACES, DESC, sizeof DESC);
    lay_out(LAYOUT_PLACES, LAYOUT, sizeof LAYOUT);
    lay_out(PREFERENCE_PLACES, PREFERENCE, sizeof PREFERENCE);
#if VERSION >= 130100
    lay_out(EMULATION_PLACES, EMULATION, sizeof EMULATION);
#endif
}
static void store(struct object *object, const struct place *places, int number, int64_t value) {
    memcpy((char *)object + places[number].at, &value, (size_t)places[number].size); /* little-endian */
}
static struct object *created(const struct place *places, const struct attribute *list, size_t size) {
    struct object *object = calloc(1, sizeof *object);
    for (size_t i = 0; i < size / sizeof *list; i++) store(object, places, list[i].number, list[i].value);
    return object;
}
static int64_t load(const struct object *object, const struct place *place) {
    int8_t one;
    int32_t four;
    int64_t eight;
    const char *from = (const char *)object + place->at;
    if (place->size == 1) return memcpy(&one, from, 1), one;
    if (place->size == 4) return memcpy(&four, from, 4), four;
    return memcpy(&eight, from, 8), eight;
}
static int64_t of_desc(const struct object *object, int number) { return load(object, &DESC_PLACES[number]); }
static int64_t of_layout(const struct object *object, int number) { return load(object, &LAYOUT_PLACES[number]); }
static int is_there(const struct place *places, int number) {
    return number >= 0 && number < 64 && places[number].size != 0;
}
static int set_attribute(const struct place *places, struct object *object, int number, const void *value, size_t size) {
    if (!is_there(places, number) || value == NULL || size != (size_t)places[number].size) return INVALID_VALUE;
    memcpy((char *)object + places[number].at, value, size);
    return OK;
}
static int get_attribute(const struct place *places, struct object *object, int number, void *value, size_t size,
                         size_t *written) {
    if (!is_there(places, number) || (size == 0 && written == NULL)) return INVALID_VALUE;
    if (size != 0 && size != (size_t)places[number].size) return INVALID_VALUE;
    if (written != NULL) *written = (size_t)places[number].size;
    if (size != 0) memcpy(value, (const char *)object + places[number].at, size);
    return OK;
}

#define OBJECT(name, places)                                                                       \
    int cublasLt##name##Destroy(struct object *object) {                                           \
        free(object);                                                                              \
        return OK;                                                                                 \
    }                                                                                              \
    int cublasLt##name##SetAttribute(struct object *o, int n, const void *v, size_t s) {           \
        return set_attribute(places, o, n, v, s);                                                  \
    }                                                                                              \
    int cublasLt##name##GetAttribute(struct object *o, int n, void *v, size_t s, size_t *w) {      \
        return get_attribute(places, o, n, v, s, w);                                               \
    }
OBJECT(MatmulDesc, DESC_PLACES)
OBJECT(MatrixLayout, LAYOUT_PLACES)
OBJECT(MatmulPreference, PREFERENCE_PLACES)

int cublasLtMatmulDescCreate(struct object **out, int compute, int scale) {
    *out = created(DESC_PLACES, DESC, sizeof DESC);
    store(*out, DESC_PLACES, 0, compute);
    store(*out, DESC_PLACES, 1, scale);
    return OK;
}
int cublasLtMatrixLayoutCreate(struct object **out, int type, uint64_t rows, uint64_t cols, int64_t ld) {
    *out = created(LAYOUT_PLACES, LAYOUT, sizeof LAYOUT);
    store(*out, LAYOUT_PLACES, 0, type);
    store(*out, LAYOUT_PLACES, 2, (int64_t)rows);
    store(*out, LAYOUT_PLACES, 3, (int64_t)cols);
    store(*out, LAYOUT_PLACES, 4, ld);
    return OK;
}
int cublasLtMatmulPreferenceCreate(struct object **out) {
    *out = created(PREFERENCE_PLACES, PREFERENCE, sizeof PREFERENCE);
    return OK;
}
#if VERSION >= 130100
OBJECT(EmulationDesc, EMULATION_PLACES)
int cublasLtEmulationDescCreate(struct object **out) {
    *out = created(EMULATION_PLACES, EMULATION, sizeof EMULATION);
    return OK;
}
#endif

size_t cublasLtGetVersion(void) { return VERSION; }
int cublasLtCreate(void **handle) {
    *handle = malloc(16);
    return OK;
}
int cublasLtDestroy(void *handle) {
    free(handle);
    return OK;
}

/* data[0..7]: the fields in 32 or 16 bits each, then the version the words are good for. */
enum { FIELDS = 11 };
static const int PLACE[] = {0, 4, 8, 12, 16, 20, 24, 28, 30, 0, 32};
static const int SIZE[] = {4, 4, 4, 4, 4, 4, 4, 2, 2, 0, 2}; /* there is no field 9 */

static void put(algo_t *algo, int field, uint32_t value) {
    memcpy((char *)algo + PLACE[field], &value, (size_t)SIZE[field]);
}
static uint32_t take(const algo_t *algo, int field) {
    uint32_t value = 0;
    memcpy(&value, (const char *)algo + PLACE[field], (size_t)SIZE[field]);
    return value;
}
int cublasLtMatmulAlgoConfigGetAttribute(const algo_t *algo, int field, void *value, size_t size, size_t *written) {
    if (field < 0 || field >= FIELDS || SIZE[field] == 0 || (size != 0 && size != (size_t)SIZE[field])) return INVALID_VALUE;
    if (written != NULL) *written = (size_t)SIZE[field];
    if (size != 0) memcpy(value, (const char *)algo + PLACE[field], size);
    return OK;
}
int cublasLtMatmulAlgoConfigSetAttribute(algo_t *algo, int field, const void *value, size_t size) {
    if (field < 1 || field >= FIELDS || SIZE[field] == 0 || size != (size_t)SIZE[field]) return INVALID_VALUE; /* 0 is read only */
    memcpy((char *)algo + PLACE[field], value, size);
    return OK;
}
int cublasLtMatmulAlgoInit(void *handle, int compute, int scale, int a, int b, int c, int d, int id, algo_t *algo) {
    (void)handle, (void)compute, (void)scale, (void)a, (void)b, (void)c, (void)d;
    if (id < FIRST_ID || id >= FIRST_ID + ALTERNATIVES) return INVALID_VALUE;
    memset(algo, 0, sizeof *algo);
    put(algo, 0, (uint32_t)id);
    put(algo, 2, 1);
    algo->data[7] = VERSION;
    return OK;
}
static void alternative(int n, algo_t *algo) {
    cublasLtMatmulAlgoInit(NULL, 0, 0, 0, 0, 0, 0, FIRST_ID + n, algo);
    put(algo, 1, 15 + (uint32_t)n);             /* tile */
    put(algo, 2, 1 + (uint32_t)n);              /* split-K */
    put(algo, 3, n == 0 ? 0 : n % 2 ? 2 : 4);   /* reduction */
    put(algo, 4, (uint32_t)n % 2);              /* swizzle */
    put(algo, 6, 35 - (uint32_t)n % 3);         /* stages */
    put(algo, 8, 2 + (uint32_t)n % 4);          /* cluster */
}
static size_t workspace_of(const algo_t *algo) {
    if (word("greedy")) return (size_t)1 << 30;
    return (size_t)(take(algo, 2) - 1) * 4096;
}
static int check(const algo_t *algo, result_t *result) {
    memset(result, 0, sizeof *result);
    result->algo = *algo;
    result->wavesCount = 0.5f;
    if (algo->data[7] != VERSION || take(algo, 0) < FIRST_ID || take(algo, 0) >= FIRST_ID + ALTERNATIVES)
        return INVALID_VALUE;
    if (take(algo, 2) < 1 || take(algo, 2) > ALTERNATIVES) return NOT_SUPPORTED;
    result->workspaceSize = workspace_of(algo);
    return OK;
}
int cublasLtMatmulAlgoCheck(void *handle, struct object *desc, struct object *a, struct object *b, struct object *c,
                            struct object *d, const algo_t *algo, result_t *result) {
    (void)handle, (void)desc, (void)a, (void)b, (void)c, (void)d;
    if (__atomic_add_fetch(&checked, 1, __ATOMIC_RELAXED) == number("fail-check", -1)) return NOT_SUPPORTED;
    return check(algo, result);
}
int cublasLtMatmulAlgoGetHeuristic(void *handle, struct object *desc, struct object *a, struct object *b,
                                   struct object *c, struct object *d, struct object *preference, int requested,
                                   result_t *results, int *returned) {
    (void)handle, (void)desc, (void)a, (void)b, (void)c, (void)d;
    *returned = 0;
    if (__atomic_add_fetch(&asked, 1, __ATOMIC_RELAXED) == number("fail-ask", -1)) return EXECUTION_FAILED;
    if (word("none")) return NOT_SUPPORTED;
    int turn = word("shuffle") ? (int)(seed() / 11 % ALTERNATIVES) : 0;
    for (int i = 0; i < ALTERNATIVES && *returned < requested; i++) {
        algo_t algo;
        alternative((first_pick() + i + turn) % ALTERNATIVES, &algo);
        if (workspace_of(&algo) > (size_t)load(preference, &PREFERENCE_PLACES[1]) && !word("greedy")) continue;
        check(&algo, &results[(*returned)++]);
    }
    return OK;
}

/* D = op(A) op(B) in float, A and B by columns; the sum over k in as many parts as split-K says. */
int cublasLtMatmul(void *handle, struct object *desc, const float *alpha, const float *A, struct object *a,
                   const float *B, struct object *b, const float *beta, const float *C, struct object *c, float *D,
                   struct object *d, const algo_t *algo, void *workspace, size_t size, void *stream) {
    (void)handle, (void)beta, (void)C, (void)c, (void)workspace, (void)stream;
    algo_t own;
    result_t result;
    if (__atomic_add_fetch(&multiplied, 1, __ATOMIC_RELAXED) == number("fail-matmul", -1)) return EXECUTION_FAILED;
    if (algo == NULL) {
        alternative(first_pick(), &own);
        algo = &own;
    }
    if (check(algo, &result) != OK || (result.workspaceSize > size && !word("greedy"))) return INVALID_VALUE;
    if (A == NULL || B == NULL || D == NULL) return OK;
    int64_t at = of_desc(desc, 3), bt = of_desc(desc, 4), parts = take(algo, 2);
    int64_t m = of_layout(d, 2), n = of_layout(d, 3), k = of_layout(a, at ? 2 : 3);
    int backwards = word("backwards") != NULL;
    int64_t lda = of_layout(a, 4), ldb = of_layout(b, 4), ldd = of_layout(d, 4);
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < m; i++) {
            float sum = 0;
            for (int64_t part = 0; part < parts; part++) {
                float partial = 0;
                for (int64_t step = k * part / parts; step < k * (part + 1) / parts; step++) {
                    int64_t l = backwards ? k - 1 - step : step;
                    partial += (at ? A[l + i * lda] : A[i + l * lda]) * (bt ? B[j + l * ldb] : B[l + j * ldb]);
                }
                sum += partial;
            }
            D[i + j * ldd] = *alpha * sum;
        }
    return OK;
}
