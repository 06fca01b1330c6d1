/* The locked algorithms, found by the hash of the whole question or of the problem alone. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "inner.h"

static const struct pins *pins;
static uint32_t *by_question, *by_problem; /* pin number + 1; 0: none */
static uint64_t slots;                     /* of each: a power of two, at least twice the pins */

static void put(uint32_t *index, uint64_t hash, uint32_t number) {
    while (index[hash & (slots - 1)]) hash++;
    index[hash & (slots - 1)] = number;
}

static int build_index(void) {
    for (slots = 16; slots < pins->count * 2; slots *= 2) continue;
    by_question = calloc(slots, sizeof *by_question);
    by_problem = calloc(slots, sizeof *by_problem);
    if (by_question == NULL || by_problem == NULL) return 1;
    for (uint32_t i = 0; i < pins->count; i++) {
        const int64_t *value = pins->pin[i].key.value;
        put(by_question, hash_words(value, KEY_END), i + 1);
        put(by_problem, hash_words(value, PROBLEM_END), i + 1);
    }
    return 0;
}

/* Map the file that table.py wrote. Returns 0, or 1 where it is not whole or of another layout. */
int load_pins(const char *path) {
    struct stat status;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 1;
    int failed = fstat(file, &status) != 0 || (size_t)status.st_size < sizeof(struct pins);
    void *at = failed ? MAP_FAILED : mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (at == MAP_FAILED) return 1;
    const struct pins *found = at;
    uint64_t whole = sizeof *found + found->count * sizeof(struct pin);
    if (memcmp(found->magic, PINS_MAGIC, sizeof found->magic) != 0 || found->layout != layout_hash() ||
        found->pin_size != sizeof(struct pin) || found->count > UINT32_MAX / 4 ||
        whole != (uint64_t)status.st_size)
        return 1;
    pins = found;
    return build_index();
}

size_t pin_count(void) { return pins == NULL ? 0 : pins->count; }
size_t pin_number(const struct pin *pin) { return (size_t)(pin - pins->pin); }

static int is_same(const struct pin *pin, const struct key *key, size_t words) {
    return memcmp(pin->key.value, key->value, words * sizeof *key->value) == 0;
}

static int is_for(const struct pin *pin, int64_t version) {
    return pin->version == version && (!pin->device[0] || !device[0] || !strcmp(pin->device, device));
}

/* The pin of exactly this question, or NULL; of several, one for this version and GPU if there is.
 * hash: of all words of the key */
const struct pin *pin_of(const struct key *key, uint64_t hash, int64_t version) {
    const struct pin *found = NULL;
    if (pins == NULL) return NULL;
    for (uint32_t number; (number = by_question[hash & (slots - 1)]) != 0; hash++) {
        const struct pin *pin = &pins->pin[number - 1];
        if (!is_same(pin, key, KEY_END)) continue;
        if (is_for(pin, version)) return pin;
        if (found == NULL) found = pin;
    }
    return found;
}

/* Whether any question about this problem is locked. hash: of the words of the problem */
int locked_problem(const struct key *key, uint64_t hash) {
    if (pins == NULL) return 0;
    for (uint32_t number; (number = by_problem[hash & (slots - 1)]) != 0; hash++)
        if (is_same(&pins->pin[number - 1], key, PROBLEM_END)) return 1;
    return 0;
}
