/* Reads the key of a problem, and the fields of an algorithm, through the library's own functions. */
#include <string.h>

#include "inner.h"

static int64_t value_of(get_attribute *get, void *object, int attribute, size_t size, int64_t otherwise) {
    union {
        int8_t one;
        int32_t four;
        int64_t eight;
    } value = {.eight = 0};
    size_t written = 0;
    if (get == NULL || object == NULL || get(object, attribute, &value, size, &written) != SUCCESS)
        return otherwise;
    return size == 8 ? value.eight : size == 4 ? value.four : value.one;
}

#define READ_DESC(name, attribute, size, otherwise)                                                \
    v[KEY_##name] = value_of(library->desc, desc, attribute, size, otherwise);
#define READ_EMULATION(name, attribute, size, otherwise)                                           \
    v[KEY_##name] = value_of(library->emulation, emulation, attribute, size, otherwise);
#define READ_MATRIX(name, attribute, size, otherwise)                                              \
    v[KEY_##name] = value_of(library->layout, matrix, attribute, size, otherwise);
#define READ_POINTER(name, attribute, size, otherwise)                                             \
    v[KEY_##name] = value_of(library->desc, desc, attribute, size, otherwise) != 0;
#define READ_PREFERENCE(name, attribute, size, otherwise)                                          \
    v[KEY_##name] = value_of(library->preference, preference, attribute, size, otherwise);

#define COUNT_FIELD(name, attribute, size, otherwise) +1
enum {
    MATRIX_SPAN = KEY_b_type - KEY_a_type,
    PREFERENCE_SPAN = 0 PREFERENCE_FIELDS(COUNT_FIELD),
    REMEMBERED = 32
};
_Static_assert(PREFERENCE_SPAN <= MATRIX_SPAN, "a small object has room for the fields of both kinds");

/* Asking the real library takes about 20 ns for each attribute, and a small object that was read before
 * is read again from its words: each thread remembers a few. */
struct small {
    const struct library *library;
    uint64_t words[SMALL_WORDS];
    int64_t fields[KEY_b_type - KEY_a_type];
};
static __thread struct small matrices_read[REMEMBERED], preferences_read[4];

/* The place of an object among those remembered, and whether it is the one that is there. */
static struct small *remembered(struct small *places, size_t count, const struct library *library,
                                const void *object, int *known) {
    struct small *place = &places[(hash_words(object, SMALL_WORDS) >> 32) % count];
    *known = place->library == library && memcmp(place->words, object, sizeof place->words) == 0;
    if (!*known) {
        place->library = library;
        memcpy(place->words, object, sizeof place->words);
    }
    return place;
}

/* The layout of one matrix, into the words of the key that begin at `out`. */
static void read_matrix(const struct library *library, void *matrix, int64_t *out) {
    int64_t *v = out - KEY_a_type;
    int known = 0;
    struct small *place = NULL;
    if (matrix != NULL) place = remembered(matrices_read, REMEMBERED, library, matrix, &known);
    if (known) {
        memcpy(out, place->fields, sizeof place->fields);
        return;
    }
    MATRIX_FIELDS(READ_MATRIX, a)
    if (place != NULL) memcpy(place->fields, out, sizeof place->fields);
}

static void read_preference(const struct library *library, void *preference, int64_t *v) {
    int64_t *out = v + KEY_search;
    int known = 0;
    struct small *place = NULL;
    if (preference != NULL) place = remembered(preferences_read, 4, library, preference, &known);
    if (known) {
        memcpy(out, place->fields, PREFERENCE_SPAN * sizeof *out);
        return;
    }
    PREFERENCE_FIELDS(READ_PREFERENCE)
    if (place != NULL) memcpy(place->fields, out, PREFERENCE_SPAN * sizeof *out);
}

/* matrices: the layouts of A, B, C, D */
void read_problem(const struct library *library, void *desc, void *const matrices[4], struct key *key) {
    int64_t *v = key->value;
    v[KEY_major] = library->major;
    DESC_FIELDS(READ_DESC)
    void *emulation = (void *)(intptr_t)value_of(library->desc, desc, DESC_EMULATION, 8, 0);
    v[KEY_emulation] = emulation != NULL;
    EMULATION_FIELDS(READ_EMULATION)
    for (int number = 0; number < 4; number++)
        read_matrix(library, matrices[number], v + KEY_a_type + number * MATRIX_SPAN);
    memset(key->value + PROBLEM_END, 0, (KEY_END - PROBLEM_END) * sizeof *v);
}

static int64_t alignment(int64_t pointer) {
    int64_t lowest = pointer & -pointer;
    return lowest < 0 || lowest > 256 ? 256 : lowest;
}

void read_question(const struct library *library, void *desc, void *preference, struct key *key) {
    int64_t *v = key->value;
    v[KEY_bias_align] = alignment(value_of(library->desc, desc, DESC_BIAS_POINTER, 8, 0));
    v[KEY_aux_align] = alignment(value_of(library->desc, desc, DESC_AUX_POINTER, 8, 0));
    POINTER_FIELDS(READ_POINTER)
    read_preference(library, preference, v);
}

#define NOTE_POINTER(name, attribute, size, otherwise)                                             \
    if (value_of(library->desc, desc, attribute, size, otherwise) != 0) call->pointers |= UINT64_C(1) << bit; \
    bit++;

/* The bytes of a scalar in the type `scale` (library_types.h): complex ones are twice as wide. */
static size_t scalar_size(int64_t scale) {
    switch (scale) {
    case 2: return 2;                      /* R_16F */
    case 0: case 10: return 4;             /* R_32F, R_32I */
    case 1: case 4: return 8;              /* R_64F, C_32F */
    case 5: return 16;                     /* C_64F */
    default: return 0;
    }
}

/* What a repro of the call needs beside its problem. The scalars are read where they are on the host. */
void read_operands(const struct library *library, void *desc, const struct operands *given, struct call *call) {
    int bit = 0;
    POINTER_FIELDS(NOTE_POINTER)
    for (int i = 0; i < MATRICES - 1; i++) call->address[i] = (uint64_t)(uintptr_t)given->matrix[i];
    call->address[MATRICES - 1] = (uint64_t)value_of(library->desc, desc, DESC_BIAS_POINTER, 8, 0);
    call->workspace = given->workspace;
    size_t size = call->key.value[KEY_pointer_mode] == 0 ? scalar_size(call->key.value[KEY_scale]) : 0;
    if (given->alpha != NULL) memcpy(call->alpha, given->alpha, size);
    if (given->beta != NULL) memcpy(call->beta, given->beta, size);
}

#define DECODE(name, attribute, size, otherwise)                                                   \
    {                                                                                              \
        uint32_t word = 0;                                                                         \
        size_t written = 0;                                                                        \
        if (library->config != NULL &&                                                             \
            library->config(algo, attribute, &word, size, &written) == SUCCESS) {                  \
            fields->value[ALGO_##name] = word;                                                     \
            fields->known |= UINT64_C(1) << ALGO_##name;                                           \
        }                                                                                          \
    }

void decode(const struct library *library, const struct algo *algo, struct fields *fields) {
    memset(fields, 0, sizeof *fields);
    ALGO_FIELDS(DECODE)
}

uint64_t hash_words(const void *words, size_t count) {
    const uint64_t *word = words;
    uint64_t hash = UINT64_C(0x243f6a8885a308d3); /* digits of pi: any odd start will do */
    for (size_t i = 0; i < count; i++) {
        hash = (hash ^ word[i]) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 32;
    }
    return hash;
}

#define AS_TEXT(name, attribute, size, otherwise) #name ":" #attribute ":" #size ":" #otherwise " "
#define STRUCT_SIZES(F) F(algo) F(result) F(key) F(fields) F(record) F(call) F(symbol) F(map) F(pin) F(pins) F(settings)
static const char LAYOUT[] = PROBLEM_FIELDS(AS_TEXT) "| " QUESTION_FIELDS(AS_TEXT) "| " ALGO_FIELDS(AS_TEXT);

/* The lists of layout.h as text: "name:attribute:bytes:default ", three lists with "| " between. */
EXPORTED const char *pinner_cublaslt_layout(void) { return LAYOUT; }

#define OFFSET(kind, member) {#kind "." #member, offsetof(struct kind, member)},
#define SIZE(kind) {#kind, sizeof(struct kind)},
struct place {
    const char *name;
    uint64_t at;
};
static const struct place PLACES[] = {
    STRUCT_SIZES(SIZE)
    OFFSET(record, state) OFFSET(record, kind) OFFSET(record, reason) OFFSET(record, status)
    OFFSET(record, version) OFFSET(record, time) OFFSET(record, asked) OFFSET(record, used)
    OFFSET(record, offered) OFFSET(record, rebuilt) OFFSET(record, settles_as)
    OFFSET(record, candidates) OFFSET(record, candidate) OFFSET(record, candidate_needs) OFFSET(record, needs)
    OFFSET(record, key_hash) OFFSET(record, problem_hash) OFFSET(record, algo)
    OFFSET(record, fields) OFFSET(record, key) OFFSET(record, caller)
    OFFSET(call, kind) OFFSET(call, status) OFFSET(call, version) OFFSET(call, algo) OFFSET(call, fields)
    OFFSET(call, key) OFFSET(call, address) OFFSET(call, workspace) OFFSET(call, alpha) OFFSET(call, beta)
    OFFSET(call, pointers) OFFSET(call, symbol)
    OFFSET(symbol, name) OFFSET(symbol, calls) OFFSET(symbol, autotuned)
    OFFSET(map, magic) OFFSET(map, layout) OFFSET(map, record_size) OFFSET(map, capacity)
    OFFSET(map, pid) OFFSET(map, parent) OFFSET(map, time) OFFSET(map, enforcing)
    OFFSET(map, questions) OFFSET(map, matmuls) OFFSET(map, lost) OFFSET(map, ambiguous)
    OFFSET(map, symbols) OFFSET(map, symbol) OFFSET(map, device) OFFSET(map, process)
    OFFSET(map, record)
    OFFSET(pin, key) OFFSET(pin, algo) OFFSET(pin, fields) OFFSET(pin, version) OFFSET(pin, needs) OFFSET(pin, device)
    OFFSET(pins, magic) OFFSET(pins, layout) OFFSET(pins, pin_size) OFFSET(pins, count) OFFSET(pins, pin)
    OFFSET(settings, layout) OFFSET(settings, enforcing) OFFSET(settings, on_miss)
    OFFSET(settings, rebuild) OFFSET(settings, any_gpu) OFFSET(settings, capacity) OFFSET(settings, prefix)
    OFFSET(settings, process)
};

/* Size or offset number `n` as the compiler laid it out; NULL after the last. For the test that
 * compares them with Python's. */
EXPORTED const char *pinner_cublaslt_place(size_t n, uint64_t *at) {
    if (n >= sizeof PLACES / sizeof *PLACES) return NULL;
    *at = PLACES[n].at;
    return PLACES[n].name;
}

/* FNV-1a of the lists and of all places: what a file must carry to be read by this library. */
uint64_t layout_hash(void) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (const char *c = LAYOUT; *c; c++) hash = (hash ^ (uint8_t)*c) * UINT64_C(0x100000001b3);
    for (size_t i = 0; i < sizeof PLACES / sizeof *PLACES; i++)
        hash = (hash ^ PLACES[i].at) * UINT64_C(0x100000001b3);
    return hash;
}

EXPORTED uint64_t pinner_cublaslt_layout_hash(void) { return layout_hash(); }

#ifndef PINNER_SOURCE
#define PINNER_SOURCE "unknown"
#endif
/* The digest of the source this was built from. */
EXPORTED const char *pinner_cublaslt_source(void) { return PINNER_SOURCE; }
