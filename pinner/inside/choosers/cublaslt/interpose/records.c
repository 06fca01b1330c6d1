/* The file in which this process counts and records: mapped and shared, so that a kill loses nothing.
 *
 * Each decision is found by its hash and compared in full. A slot is taken with one compare-and-swap
 * and is whole when its state says so; nobody waits on anything but a slot that is being filled.
 * A child that was forked opens a file of its own at its first call. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "inner.h"

enum { FREE = 0, WRITING = 1, WHOLE = 2, PROBES = 1024, REFUSED_EXIT = 96 };

struct settings settings;
char device[TEXT];
static int started;
static struct map *mapped;     /* NULL: not opened yet */
static size_t mapped_size;
static uint32_t *by_problem;   /* record number + 1 by the hash of its problem, 0: none */
static int opener;             /* 1: a thread is opening the file */
int generation;                /* how many forks lie behind this process */

void add(uint64_t *counter) { __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED); }
int is_started(void) { return __atomic_load_n(&started, __ATOMIC_ACQUIRE); }

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return (uint64_t)time.tv_sec * UINT64_C(1000000000) + (uint64_t)time.tv_nsec;
}

/* A process whose decisions cannot be written must not go on: they would be lost without a word. */
static void refuse(const char *what, const char *path, int error) {
    dprintf(2, "pinner: cannot %s %s, where this process writes what cuBLASLt decides: %s\n", what, path,
            strerror(error));
    _exit(REFUSED_EXIT);
}

static struct map *open_file(uint64_t capacity) {
    char path[sizeof settings.prefix + 64];
    uint64_t nonce = now();
    int file;
    do {
        snprintf(path, sizeof path, "%s-%ld-%012llx.map", settings.prefix, (long)getpid(),
                 (unsigned long long)(nonce++ & 0xffffffffffff));
        file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    } while (file < 0 && errno == EEXIST);
    if (file < 0) refuse("open", path, errno);
    mapped_size = sizeof(struct map) + capacity * sizeof(struct record);
    /* Room is taken now: a full disk would otherwise end the process in the middle of a call. */
    int error = posix_fallocate(file, 0, (off_t)mapped_size);
    if (error) refuse("find room for", path, error);
    void *at = mmap(NULL, mapped_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) refuse("map", path, errno);
    close(file);
    return at;
}

static struct map *open_map(void) {
    uint64_t capacity = settings.capacity ? settings.capacity : CAPACITY;
    uint32_t *index = calloc(capacity * 2, sizeof *index);
    if (index == NULL) refuse("index", settings.prefix, ENOMEM);
    struct map *map = open_file(capacity);
    map->layout = layout_hash();
    map->record_size = sizeof(struct record);
    map->capacity = capacity;
    map->pid = getpid();
    map->parent = getppid();
    map->time = now();
    map->enforcing = settings.enforcing;
    name_symbols(map);
    memcpy(map->device, device, sizeof device);
    memcpy(map->process, settings.process, sizeof map->process);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    memcpy(map->magic, MAP_MAGIC, sizeof map->magic);
    by_problem = index;
    __atomic_store_n(&mapped, map, __ATOMIC_RELEASE);
    return map;
}

/* This process's file; NULL before Python has said what to do. */
struct map *current_map(void) {
    struct map *map = __atomic_load_n(&mapped, __ATOMIC_ACQUIRE);
    if (map != NULL || !is_started()) return map;
    while (__atomic_exchange_n(&opener, 1, __ATOMIC_ACQUIRE)) { /* another thread's first call */
        map = __atomic_load_n(&mapped, __ATOMIC_ACQUIRE);
        if (map != NULL) return map;
    }
    map = __atomic_load_n(&mapped, __ATOMIC_ACQUIRE);
    if (map == NULL) map = open_map();
    __atomic_store_n(&opener, 0, __ATOMIC_RELEASE);
    return map;
}

static int same_algo(const struct algo *a, const struct algo *b) { return memcmp(a, b, sizeof *a) == 0; }

static int same_decision(const struct record *a, const struct record *b) {
    return a->key_hash == b->key_hash && a->kind == b->kind && a->reason == b->reason &&
           a->status == b->status && same_algo(&a->algo, &b->algo) && strcmp(a->caller, b->caller) == 0 &&
           memcmp(&a->key, &b->key, sizeof a->key) == 0;
}

static uint32_t state_when_filled(struct record *slot) {
    uint32_t state;
    do state = __atomic_load_n(&slot->state, __ATOMIC_ACQUIRE);
    while (state == WRITING);
    return state;
}

static void index_problem(const struct map *map, const struct record *slot) {
    uint32_t number = (uint32_t)(slot - map->record) + 1;
    uint64_t size = map->capacity * 2;
    for (uint64_t i = 0; i < size; i++) {
        uint32_t empty = 0;
        if (__atomic_compare_exchange_n(&by_problem[(slot->problem_hash + i) % size], &empty, number, 0,
                                        __ATOMIC_RELEASE, __ATOMIC_RELAXED))
            return;
    }
}

/* The record of this decision, made where there is none; NULL, and counted as lost, without room.
 * library: decodes a new record's algorithm; NULL where it has none */
struct record *recorded(struct map *map, const struct record *wanted, const struct library *library) {
    uint64_t probes = map->capacity < PROBES ? map->capacity : PROBES;
    for (uint64_t i = 0; i < probes; i++) {
        struct record *slot = &map->record[(wanted->key_hash + i) % map->capacity];
        uint32_t empty = FREE;
        if (__atomic_load_n(&slot->state, __ATOMIC_ACQUIRE) == FREE &&
            __atomic_compare_exchange_n(&slot->state, &empty, WRITING, 0, __ATOMIC_ACQUIRE,
                                        __ATOMIC_ACQUIRE)) {
            size_t head = offsetof(struct record, kind);
            memcpy((char *)slot + head, (const char *)wanted + head, sizeof *slot - head);
            slot->time = now();
            if (library != NULL) decode(library, &slot->algo, &slot->fields);
            __atomic_store_n(&slot->state, WHOLE, __ATOMIC_RELEASE);
            index_problem(map, slot);
            return slot;
        }
        if (state_when_filled(slot) == WHOLE && same_decision(slot, wanted)) return slot;
    }
    add(&map->lost);
    return NULL;
}

static int is_candidate(const struct record *record, const struct algo *algo) {
    uint64_t hash = hash_words(algo, ALGO_WORDS);
    for (uint32_t i = 0; i < record->candidates; i++)
        if (record->candidate[i] == hash) return 1;
    return record->offered > record->candidates; /* more were returned than are remembered */
}

/* An answer this process got for the problem earlier that explains this algorithm, or NULL. */
struct record *asked_before(struct map *map, uint64_t problem_hash, const struct key *key,
                            const struct algo *algo) {
    uint64_t size = map->capacity * 2;
    for (uint64_t i = 0; i < size; i++) {
        uint32_t number = __atomic_load_n(&by_problem[(problem_hash + i) % size], __ATOMIC_ACQUIRE);
        if (number == 0) return NULL;
        struct record *each = &map->record[number - 1];
        if (each->problem_hash != problem_hash ||
            memcmp(each->key.value, key->value, PROBLEM_END * sizeof *key->value) != 0)
            continue;
        if (each->kind == KIND_ASKED ? is_candidate(each, algo)
                                     : each->kind <= KIND_FALLBACK && same_algo(&each->algo, algo))
            return each;
    }
    return NULL;
}

static void in_child(void) {
    struct map *map = mapped;
    mapped = NULL; /* the parent's: its counts are its own */
    opener = 0;
    generation++;
    forget_answers();
    forget_openers();
    forget_calls();
    by_problem = NULL; /* left where it is: free() is not safe here */
    if (map != NULL) munmap(map, mapped_size);
}

/* Begin. Returns 0; 1: built for another layout, 2: pins unreadable, 3: out of memory. */
EXPORTED int pinner_cublaslt_start(const struct settings *wanted, const char *pins) {
    if (is_started()) return 0;
    if (wanted->layout != layout_hash()) return 1;
    settings = *wanted;
    if (pins != NULL && load_pins(pins) != 0) return 2;
    if (prepare_answers() != 0 || pthread_atfork(NULL, NULL, in_child) != 0) return 3;
    __atomic_store_n(&started, 1, __ATOMIC_RELEASE);
    return 0;
}

/* Say which GPU this process uses, before it uses it. */
EXPORTED void pinner_cublaslt_device(const char *name) { snprintf(device, sizeof device, "%s", name); }

/* How many calls were seen: questions, matmuls, legacy calls. All 0 where no call was. */
EXPORTED void pinner_cublaslt_seen(uint64_t counts[3]) {
    struct map *map = __atomic_load_n(&mapped, __ATOMIC_ACQUIRE);
    memset(counts, 0, 3 * sizeof *counts);
    if (map == NULL) return;
    counts[0] = __atomic_load_n(&map->questions, __ATOMIC_RELAXED);
    counts[1] = __atomic_load_n(&map->matmuls, __ATOMIC_RELAXED);
    for (int i = 0; i < SYMBOLS; i++)
        counts[2] += __atomic_load_n(&map->symbol[i].calls, __ATOMIC_RELAXED);
}
