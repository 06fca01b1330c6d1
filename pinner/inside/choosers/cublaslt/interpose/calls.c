/* Remembers the last matmuls of each thread, for a trace that asks for them.
 *
 * Nothing is remembered before `pinner_cublaslt_follow`. Then each thread has a ring of its own, which
 * the same thread reads after what it asked cuBLASLt for: no lock, and no call of another thread. One
 * counter of all threads says whether it is worth looking. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "inner.h"

struct ring {
    uint64_t made, taken; /* calls since the thread began */
    struct call call[CALLS];
};

static __thread struct ring *ring;
static pthread_key_t ending;
static int following;

/* How many calls were remembered, by all threads. */
EXPORTED uint64_t pinner_cublaslt_followed;

int is_following(void) { return __atomic_load_n(&following, __ATOMIC_RELAXED); }

/* Remember each call from here on. Returns 0, or 1 where that is not possible. */
EXPORTED int pinner_cublaslt_follow(void) {
    if (is_following()) return 0;
    if (pthread_key_create(&ending, free) != 0) return 1;
    __atomic_store_n(&following, 1, __ATOMIC_RELAXED);
    return 0;
}

/* A place for the thread's next call, emptied; NULL without memory. `call_is_made` makes it count. */
struct call *next_call(void) {
    if (ring == NULL) {
        ring = calloc(1, sizeof *ring);
        if (ring == NULL) return NULL;
        pthread_setspecific(ending, ring);
    }
    struct call *place = &ring->call[ring->made % CALLS];
    memset(place, 0, sizeof *place);
    return place;
}

void call_is_made(void) {
    ring->made++;
    add(&pinner_cublaslt_followed);
}

/* Hand over what this thread called since the last time, oldest first: at most CALLS of them.
 * lost: gets how many more there were, before those */
EXPORTED size_t pinner_cublaslt_calls(struct call *out, uint64_t *lost) {
    *lost = 0;
    if (ring == NULL) return 0;
    uint64_t first = ring->taken;
    if (ring->made - first > CALLS) {
        *lost = ring->made - first - CALLS;
        first = ring->made - CALLS;
    }
    size_t count = ring->made - first;
    for (size_t i = 0; i < count; i++) out[i] = ring->call[(first + i) % CALLS];
    ring->taken = ring->made;
    return count;
}

/* In a child that was forked: what its parent called is the parent's to tell. */
void forget_calls(void) {
    if (ring != NULL) ring->taken = ring->made;
}
