/* What the parts of this library offer each other. Nothing here is exported. */
#ifndef PINNER_INNER_H
#define PINNER_INNER_H

#include "layout.h"

#define EXPORTED __attribute__((visibility("default")))

/* real.c: one cuBLASLt of this process */
struct library {
    void *opened;
    int64_t major, version;
    get_heuristic *heuristic;
    matmul *multiply;
    algo_check *check;
    algo_init *init;
    get_config *config;
    set_config *configure;
    get_attribute *desc, *layout, *preference, *emulation;
};
const struct library *library_of(const void *caller);
void *legacy_function(const void *caller, int symbol, const char *name);
int is_ours(const void *address);
void name_of_caller(const void *caller, char out[TEXT]);
uint64_t ambiguous_calls(void);
void forget_openers(void);

/* key.c */
void read_problem(const struct library *library, void *desc, void *const matrices[4], struct key *key);
void read_question(const struct library *library, void *desc, void *preference, struct key *key);
struct operands {
    const void *alpha, *beta, *matrix[MATRICES - 1]; /* A, B, C, D */
    size_t workspace;
};
void read_operands(const struct library *library, void *desc, const struct operands *given, struct call *call);
void decode(const struct library *library, const struct algo *algo, struct fields *fields);
uint64_t hash_words(const void *words, size_t count);
uint64_t layout_hash(void);

/* records.c */
extern struct settings settings;
extern char device[TEXT];
int is_started(void);
struct map *current_map(void);
struct record *recorded(struct map *map, const struct record *wanted, const struct library *library);
extern int generation;
struct record *asked_before(struct map *map, uint64_t problem_hash, const struct key *key,
                            const struct algo *algo);
void add(uint64_t *counter);

/* calls.c */
int is_following(void);
struct call *next_call(void);
void call_is_made(void);
void forget_calls(void);

/* legacy.c */
void name_symbols(struct map *map);

/* pins.c */
const struct pin *pin_of(const struct key *key, uint64_t hash, int64_t version);
int locked_problem(const struct key *key, uint64_t hash);
int load_pins(const char *path);
size_t pin_number(const struct pin *pin);
size_t pin_count(void);

/* matmul.c */
extern __thread int inside_legacy;
int prepare_answers(void);
void forget_answers(void);
#endif
