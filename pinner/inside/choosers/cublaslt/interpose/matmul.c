/* The two calls of cuBLASLt that PyTorch and TransformerEngine make: the question which algorithm to
 * use, and the matmul that uses it.
 *
 * Recording: the library answers, and the answer is written down. Enforcing: a locked question is
 * answered from the lock, after the library itself has checked the algorithm; then the matmul is
 * checked to use it. No lock is held while the library works. */
#include <stdlib.h>
#include <string.h>

#include "inner.h"

/* What was found out about a pin when it was first answered: good for this handle as long as the
 * process lives. */
struct answer {
    void *handle;
    struct record *record;
    struct result result;
    int rebuilt;
};
struct place {
    int state; /* 0 nothing yet, 1 being written, 2 good */
    struct answer answer;
};

/* The answer a thread got last: its next matmul is expected to use it. */
struct last {
    struct record *record;
    int generation;
    struct algo algo;
    int64_t problem[PROBLEM_END];
};

__thread int inside_legacy; /* libcublas works for a legacy call: what it asks is no question of the user's */
static __thread struct last last;
static struct place *places; /* one for each pin */

int prepare_answers(void) {
    places = calloc(pin_count() + 1, sizeof *places);
    return places == NULL;
}

/* In a child that was forked: its records are its own. */
void forget_answers(void) {
    for (size_t i = 0; i < pin_count(); i++) places[i].state = 0;
}

static void start_record(struct record *record, enum kind kind, const struct key *key,
                         const struct library *library) {
    memset(record, 0, offsetof(struct record, key));
    memset(record->caller, 0, sizeof record->caller);
    record->kind = kind;
    record->version = library->version;
    record->key = *key;
    record->key_hash = hash_words(key->value, KEY_END);
    record->problem_hash = hash_words(key->value, PROBLEM_END);
}

static void remember(struct record *record, const struct key *key, const struct algo *algo) {
    last.record = record;
    last.generation = generation;
    last.algo = *algo;
    memcpy(last.problem, key->value, sizeof last.problem);
}

static int refuse(const struct key *key, const struct library *library, const struct pin *pin,
                  enum kind kind, enum reason reason, int status, int *returned) {
    struct record wanted;
    start_record(&wanted, kind, key, library);
    wanted.reason = reason;
    wanted.status = status;
    if (pin != NULL) {
        wanted.version = pin->version;
        wanted.algo = pin->algo;
        wanted.fields = pin->fields;
    }
    struct record *record = recorded(current_map(), &wanted, NULL);
    if (record != NULL) add(&record->asked);
    *returned = 0;
    return NOT_SUPPORTED; /* PyTorch raises for it; an answer with no result it would pass over */
}

/* The locked algorithm for this version of the library. Returns a reason where there is none. */
static enum reason locked_algo(const struct library *library, const struct pin *pin, void *handle,
                               const struct key *key, struct algo *algo, int *rebuilt, int *status) {
    const int64_t *v = key->value;
    *algo = pin->algo;
    *rebuilt = 0;
    if (pin->device[0] && device[0] && strcmp(pin->device, device) != 0 && !settings.any_gpu)
        return REASON_DEVICE;
    if (pin->version == library->version) return REASON_NONE;
    if (!settings.rebuild) return REASON_VERSION;
    *rebuilt = 1;
    if (library->init == NULL || library->configure == NULL) return REASON_REBUILD;
    *status = library->init(handle, (int)v[KEY_compute], (int)v[KEY_scale], (int)v[KEY_a_type],
                            (int)v[KEY_b_type], (int)v[KEY_c_type], (int)v[KEY_d_type],
                            (int)pin->fields.value[ALGO_id], algo);
    if (*status != SUCCESS) return REASON_REBUILD;
#define CONFIGURE(name, attribute, size, otherwise)                                                \
    if (attribute != 0 && (pin->fields.known >> ALGO_##name & 1)) {                                \
        uint32_t word = (uint32_t)pin->fields.value[ALGO_##name];                                  \
        *status = library->configure(algo, attribute, &word, size);                                \
        if (*status != SUCCESS) return REASON_REBUILD;                                             \
    }
    ALGO_FIELDS(CONFIGURE)
    return REASON_NONE;
}

/* Whether the library reads other fields in the blob than the lock names for a person. */
static int says_otherwise(const struct library *library, const struct pin *pin, const struct algo *algo) {
    struct fields here;
    decode(library, algo, &here);
    for (int i = 0; i < ALGO_END; i++)
        if ((here.known & pin->fields.known) >> i & 1 && here.value[i] != pin->fields.value[i]) return 1;
    return 0;
}

static void give(const struct answer *answer, const struct key *key, struct result *results, int *returned) {
    results[0] = answer->result;
    *returned = 1;
    if (answer->record != NULL) add(&answer->record->asked);
    remember(answer->record, key, &answer->result.algo);
}

static struct record *forced_record(const struct library *library, const struct pin *pin,
                                    const struct key *key, const struct answer *answer) {
    struct record wanted;
    start_record(&wanted, KIND_FORCED, key, library);
    wanted.version = pin->version;
    wanted.algo = answer->result.algo;
    wanted.needs = pin->needs < 0 ? answer->result.workspace : (uint64_t)pin->needs;
    wanted.rebuilt = (uint32_t)answer->rebuilt;
    wanted.offered = 1;
    return recorded(current_map(), &wanted, library);
}

static int answer_from_lock(const struct library *library, const struct pin *pin, const struct key *key,
                            void *handle, void *desc, void *const m[4], struct result *results,
                            int *returned) {
    struct place *known = &places[pin_number(pin)];
    if (__atomic_load_n(&known->state, __ATOMIC_ACQUIRE) == 2 && known->answer.handle == handle) {
        give(&known->answer, key, results, returned);
        return SUCCESS;
    }
    struct answer found = {.handle = handle};
    struct algo algo;
    int status = SUCCESS;
    enum reason reason = locked_algo(library, pin, handle, key, &algo, &found.rebuilt, &status);
    if (reason != REASON_NONE) return refuse(key, library, pin, KIND_INVALID, reason, status, returned);
    status = library->check == NULL ? NOT_SUPPORTED
                                    : library->check(handle, desc, m[0], m[1], m[2], m[3], &algo, &found.result);
    if (status == SUCCESS) status = found.result.state;
    if (status != SUCCESS)
        return refuse(key, library, pin, KIND_INVALID, REASON_CHECK, status, returned);
    if (found.result.workspace > (uint64_t)key->value[KEY_workspace])
        return refuse(key, library, pin, KIND_INVALID, REASON_WORKSPACE, 0, returned);
    if (!found.rebuilt && says_otherwise(library, pin, &algo))
        return refuse(key, library, pin, KIND_INVALID, REASON_FIELDS, 0, returned);
    found.result.algo = algo;
    found.result.state = SUCCESS;
    found.record = forced_record(library, pin, key, &found);
    int empty = 0;
    if (__atomic_compare_exchange_n(&known->state, &empty, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
        known->answer = found;
        __atomic_store_n(&known->state, 2, __ATOMIC_RELEASE);
    }
    give(&found, key, results, returned);
    return SUCCESS;
}

/* Write down what the library answered. */
static void note_answer(const struct library *library, const struct key *key, enum kind kind, int requested,
                        const struct result *results, int returned, int status) {
    struct record wanted;
    int settled = requested == 1 && status == SUCCESS && returned > 0;
    start_record(&wanted, kind, key, library);
    if (status != SUCCESS || returned <= 0) {
        wanted.kind = KIND_REFUSED;
        wanted.status = status;
    } else if (settled) {
        wanted.algo = results[0].algo;
        wanted.needs = results[0].workspace;
    } else {
        wanted.kind = KIND_ASKED;
        wanted.settles_as = kind;
        wanted.candidates = (uint32_t)(returned < CANDIDATES ? returned : CANDIDATES);
        for (uint32_t i = 0; i < wanted.candidates; i++) {
            wanted.candidate[i] = hash_words(&results[i].algo, ALGO_WORDS);
            wanted.candidate_needs[i] = results[i].workspace;
        }
    }
    wanted.offered = (uint32_t)(returned > 0 ? returned : 0);
    struct record *record = recorded(current_map(), &wanted, settled ? library : NULL);
    if (record == NULL) return;
    add(&record->asked);
    if (status == SUCCESS && returned > 0) remember(record, key, &results[0].algo);
}

EXPORTED int cublasLtMatmulAlgoGetHeuristic(void *handle, void *desc, void *a, void *b, void *c, void *d,
                                            void *preference, int requested, struct result *results,
                                            int *returned) {
    const struct library *library = library_of(__builtin_return_address(0));
    if (library == NULL) return NOT_INITIALIZED;
    struct map *map = inside_legacy ? NULL : current_map();
    if (map == NULL || requested < 1 || results == NULL || returned == NULL)
        return library->heuristic(handle, desc, a, b, c, d, preference, requested, results, returned);
    void *const matrices[4] = {a, b, c, d};
    struct key key;
    read_problem(library, desc, matrices, &key);
    read_question(library, desc, preference, &key);
    add(&map->questions);
    if (settings.enforcing) {
        const struct pin *pin = pin_of(&key, hash_words(key.value, KEY_END), library->version);
        if (pin != NULL)
            return answer_from_lock(library, pin, &key, handle, desc, matrices, results, returned);
        if (settings.on_miss == 1)
            return refuse(&key, library, NULL, KIND_MISSED, REASON_NONE, 0, returned);
    }
    int status = library->heuristic(handle, desc, a, b, c, d, preference, requested, results, returned);
    note_answer(library, &key, settings.enforcing ? KIND_FALLBACK : KIND_HEURISTIC, requested, results,
                status == SUCCESS ? *returned : 0, status);
    return status;
}

/* PyTorch 2.9 and later asks about n = 2 on Blackwell where the matmul has n = 1, so that no GEMV kernel
 * is taken; nothing else may differ between the question and the call. */
static int differs_in_n_only(const struct key *key) {
    if (key->value[KEY_d_cols] != 1 || last.problem[KEY_d_cols] != 2) return 0;
    for (int i = 0; i < PROBLEM_END; i++)
        if (key->value[i] != last.problem[i] && i != KEY_b_rows && i != KEY_b_cols && i != KEY_b_ld &&
            i != KEY_c_cols && i != KEY_c_ld && i != KEY_d_cols && i != KEY_d_ld)
            return 0;
    return 1;
}

/* What was answered for this matmul, or NULL: then its algorithm comes from elsewhere. */
static struct record *answered(struct map *map, const struct key *key, uint64_t hash,
                               const struct algo *algo) {
    if (last.record != NULL && last.generation == generation &&
        memcmp(&last.algo, algo, sizeof *algo) == 0 &&
        (memcmp(last.problem, key->value, sizeof last.problem) == 0 || differs_in_n_only(key)))
        return last.record;
    return asked_before(map, hash, key, algo);
}

static struct record *note_trouble(struct map *map, const struct library *library, const struct key *key,
                                   enum kind kind, int status, const struct algo *algo,
                                   const void *caller) {
    struct record wanted;
    start_record(&wanted, kind, key, library);
    wanted.reason = kind == KIND_INVALID ? REASON_MATMUL : REASON_NONE;
    wanted.status = status;
    if (algo != NULL) wanted.algo = *algo;
    name_of_caller(caller, wanted.caller);
    struct record *record = recorded(map, &wanted, algo == NULL ? NULL : library);
    if (record != NULL) add(&record->used);
    return record;
}

/* Of several answers this one was used: that is the choice. */
static struct record *settle(struct map *map, const struct library *library, const struct record *asked,
                             const struct algo *algo, size_t workspace) {
    struct record wanted;
    uint64_t hash = hash_words(algo, ALGO_WORDS);
    start_record(&wanted, (enum kind)asked->settles_as, &asked->key, library);
    wanted.needs = workspace; /* as much as it was given, where the answer is not remembered */
    for (uint32_t i = 0; i < asked->candidates; i++)
        if (asked->candidate[i] == hash) wanted.needs = asked->candidate_needs[i];
    wanted.algo = *algo;
    wanted.offered = asked->offered;
    struct record *record = recorded(map, &wanted, library);
    if (record != NULL) add(&record->asked);
    return record;
}

/* Returns where the algorithm came from. */
static enum kind note_matmul(struct map *map, const struct library *library, const struct key *key,
                        const struct algo *algo, size_t workspace, int status, const void *caller) {
    uint64_t hash = hash_words(key->value, PROBLEM_END);
    struct record *record = answered(map, key, hash, algo);
    if (record == NULL) {
        int locked = settings.enforcing && locked_problem(key, hash);
        enum kind kind = locked ? KIND_BYPASS : KIND_UNASKED;
        note_trouble(map, library, key, kind, 0, algo, caller);
        return kind;
    }
    if (record->kind == KIND_ASKED) {
        add(&record->used);
        enum kind kind = (enum kind)record->settles_as;
        record = settle(map, library, record, algo, workspace);
        if (record == NULL) return kind;
        remember(record, key, algo);
    }
    add(&record->used);
    if (status != SUCCESS) {
        /* PyTorch goes on with cuBLAS after a warning: nothing but this record would tell. */
        struct record *failed =
            note_trouble(map, library, &record->key, KIND_INVALID, status, algo, caller);
        if (failed != NULL) failed->version = record->version;
    }
    return (enum kind)record->kind;
}

/* Tell a trace of it. */
static void tell(const struct library *library, void *desc, const struct key *key, const struct algo *algo,
                 enum kind kind, int status, const struct operands *given) {
    struct call *call = next_call();
    if (call == NULL) return;
    call->kind = kind;
    call->status = status;
    call->version = library->version;
    call->key = *key;
    read_operands(library, desc, given, call);
    if (algo != NULL) {
        call->algo = *algo;
        decode(library, algo, &call->fields);
    }
    call_is_made();
}

EXPORTED int cublasLtMatmul(void *handle, void *desc, const void *alpha, const void *A, void *a,
                            const void *B, void *b, const void *beta, const void *C, void *c, void *D,
                            void *d, const struct algo *algo, void *workspace, size_t size, void *stream) {
    const void *caller = __builtin_return_address(0);
    const struct library *library = library_of(caller);
    if (library == NULL) return NOT_INITIALIZED;
    struct map *map = inside_legacy ? NULL : current_map();
    if (map == NULL)
        return library->multiply(handle, desc, alpha, A, a, B, b, beta, C, c, D, d, algo, workspace, size, stream);
    void *const matrices[4] = {a, b, c, d};
    struct key key;
    read_problem(library, desc, matrices, &key);
    add(&map->matmuls);
    int status =
        library->multiply(handle, desc, alpha, A, a, B, b, beta, C, c, D, d, algo, workspace, size, stream);
    enum kind kind = KIND_IMPLICIT;
    if (algo == NULL)
        note_trouble(map, library, &key, kind, 0, NULL, caller);
    else
        kind = note_matmul(map, library, &key, algo, size, status, caller);
    if (is_following()) {
        const struct operands given = {alpha, beta, {A, B, C, D}, size};
        tell(library, desc, &key, algo, kind, status, &given);
    }
    __atomic_store_n(&map->ambiguous, ambiguous_calls(), __ATOMIC_RELAXED);
    return status;
}
