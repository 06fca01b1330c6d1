/* Finds the real libraries behind a call: for each caller those of the version it was linked with.
 *
 * `dlsym(RTLD_NEXT, …)` returned NULL when measured: this library comes after the real ones in no
 * order that the loader keeps. `dlopen` with RTLD_NOLOAD finds what is loaded already. */
#define _GNU_SOURCE 1 /* dladdr1, RTLD_DEFAULT, dl_iterate_phdr */
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inner.h"

enum { FIRST_MAJOR = 10, LAST_MAJOR = 40, LIBRARIES = 8, CALLERS = 64 };

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static struct library libraries[LIBRARIES];
static uint64_t ambiguous;

/* What a thread has found out about the places that call it. */
struct met {
    const void *caller;
    const struct library *library;
};
static __thread struct met met[CALLERS];

struct met_function {
    const void *caller;
    int symbol;
    void *function;
};
static __thread struct met_function met_functions[CALLERS];
static const char met_anchor; /* something that lies in this library and nowhere else */

/* In a child that was forked while another thread was looking. */
void forget_openers(void) { pthread_mutex_init(&opening, NULL); }

uint64_t ambiguous_calls(void) { return __atomic_load_n(&ambiguous, __ATOMIC_RELAXED); }

static const struct library *opened_as(void *opened, int major) {
    int64_t version = -1;
    const struct library *found = NULL;
    pthread_mutex_lock(&opening);
    for (int i = 0; i < LIBRARIES && found == NULL; i++) {
        struct library *each = &libraries[i];
        if (each->opened == opened) {
            found = each;
        } else if (each->opened == NULL) {
            get_version *ask = (get_version *)dlsym(opened, "cublasLtGetVersion");
            version = ask == NULL ? 0 : (int64_t)ask();
            each->version = version;
            each->major = major > 0 ? major : version / 10000;
            each->heuristic = (get_heuristic *)dlsym(opened, "cublasLtMatmulAlgoGetHeuristic");
            each->multiply = (matmul *)dlsym(opened, "cublasLtMatmul");
            each->check = (algo_check *)dlsym(opened, "cublasLtMatmulAlgoCheck");
            each->init = (algo_init *)dlsym(opened, "cublasLtMatmulAlgoInit");
            each->config = (get_config *)dlsym(opened, "cublasLtMatmulAlgoConfigGetAttribute");
            each->configure = (set_config *)dlsym(opened, "cublasLtMatmulAlgoConfigSetAttribute");
            each->desc = (get_attribute *)dlsym(opened, "cublasLtMatmulDescGetAttribute");
            each->layout = (get_attribute *)dlsym(opened, "cublasLtMatrixLayoutGetAttribute");
            each->preference = (get_attribute *)dlsym(opened, "cublasLtMatmulPreferenceGetAttribute");
            each->emulation = (get_attribute *)dlsym(opened, "cublasLtEmulationDescGetAttribute");
            each->opened = opened;
            found = each;
        }
    }
    pthread_mutex_unlock(&opening);
    return found;
}

static void *loaded(const char *stem, int major) {
    char name[64];
    snprintf(name, sizeof name, major > 0 ? "%s.%d" : "%s", stem, major);
    return dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
}

/* The number N of a needed "libcublasLt.so.N" or "libcublas.so.N" of the object; 0: it needs none. */
static int needed_major(const struct link_map *object) {
    const char *strings = NULL;
    for (const ElfW(Dyn) *each = object->l_ld; each->d_tag != DT_NULL; each++)
        if (each->d_tag == DT_STRTAB) strings = (const char *)each->d_un.d_ptr;
    if (strings == NULL) return 0;
    for (const ElfW(Dyn) *each = object->l_ld; each->d_tag != DT_NULL; each++) {
        int major = 0;
        if (each->d_tag != DT_NEEDED) continue;
        if (sscanf(strings + each->d_un.d_val, "libcublasLt.so.%d", &major) == 1 ||
            sscanf(strings + each->d_un.d_val, "libcublas.so.%d", &major) == 1)
            return major;
    }
    return 0;
}

static struct link_map *object_of(const void *caller, Dl_info *info) {
    struct link_map *object = NULL;
    return dladdr1(caller, info, (void **)&object, RTLD_DL_LINKMAP) != 0 ? object : NULL;
}

/* Whether the address lies in this library. */
int is_ours(const void *address) {
    Dl_info info, own;
    return dladdr(address, &info) != 0 && dladdr((const void *)&met_anchor, &own) != 0 &&
           info.dli_fbase == own.dli_fbase;
}

/* A caller that names no version: the one that is there, the first if there are several, or, where
 * none is, the caller's own copy, linked statically. Returns what was opened. */
static void *opened_without_a_name(const char *stem, const char *symbol, const struct link_map *object,
                                   int *major) {
    void *found = NULL;
    for (int each = FIRST_MAJOR; each <= LAST_MAJOR; each++) {
        void *opened = loaded(stem, each);
        if (opened == NULL) continue;
        if (found != NULL) {
            add(&ambiguous);
            break;
        }
        found = opened;
        *major = each;
    }
    if (found == NULL) found = loaded(stem, 0);
    if (found != NULL || object == NULL) return found;
    const char *name = object->l_name[0] ? object->l_name : NULL;
    void *opened = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
    if (opened == NULL) return NULL;
    void *address = dlsym(opened, symbol);
    return address == NULL || is_ours(address) ? NULL : opened;
}

static const struct library *resolve(const void *caller) {
    Dl_info info;
    struct link_map *object = object_of(caller, &info);
    int major = object == NULL ? 0 : needed_major(object);
    void *opened = major > 0 ? loaded("libcublasLt.so", major) : NULL;
    if (opened == NULL) {
        major = 0;
        opened = opened_without_a_name("libcublasLt.so", "cublasLtMatmul", object, &major);
    }
    if (opened == NULL) return NULL;
    const struct library *library = opened_as(opened, major);
    return library == NULL || library->multiply == NULL || library->heuristic == NULL ? NULL : library;
}

/* The library that the object around `caller` was linked with; NULL where none is loaded. */
const struct library *library_of(const void *caller) {
    struct met *known = &met[((uintptr_t)caller >> 2) % CALLERS];
    if (known->caller == caller && known->library != NULL) return known->library;
    known->library = resolve(caller);
    known->caller = caller;
    return known->library;
}

static void *resolve_function(const void *caller, const char *name) {
    Dl_info info;
    struct link_map *object = object_of(caller, &info);
    int major = object == NULL ? 0 : needed_major(object);
    void *opened = major > 0 ? loaded("libcublas.so", major) : NULL;
    if (opened == NULL) opened = opened_without_a_name("libcublas.so", name, object, &major);
    return opened == NULL ? NULL : dlsym(opened, name);
}

/* Function `name` (number `symbol`) of the real libcublas for this caller; NULL: not loaded. */
void *legacy_function(const void *caller, int symbol, const char *name) {
    struct met_function *known = &met_functions[(((uintptr_t)caller >> 2) + (uintptr_t)symbol) % CALLERS];
    if (known->caller == caller && known->symbol == symbol && known->function != NULL)
        return known->function;
    *known = (struct met_function){caller, symbol, resolve_function(caller, name)};
    return known->function;
}

/* The file name of the object around `caller`, for a reader. */
void name_of_caller(const void *caller, char out[TEXT]) {
    Dl_info info;
    const char *path = dladdr(caller, &info) != 0 && info.dli_fname != NULL ? info.dli_fname : "?";
    const char *slash = strrchr(path, '/');
    snprintf(out, TEXT, "%s", slash == NULL ? path : slash + 1);
}
