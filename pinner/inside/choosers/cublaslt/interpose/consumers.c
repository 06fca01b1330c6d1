/* Looks at who in this process calls cuBLASLt, and whether these calls come here.
 *
 * Each loaded object has a relocation for every foreign function it calls, and a slot where the loader
 * wrote the function's address. A slot that holds the real library's address was bound past us (the
 * object was loaded before this library, or with RTLD_DEEPBIND); one that still leads into the object
 * itself belongs to a function that has never been called (lazy binding). */
#define _GNU_SOURCE 1 /* dladdr1, RTLD_DEFAULT, dl_iterate_phdr */
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#include "inner.h"

struct report {
    char *text;
    size_t size, used;
};

struct tables {
    const char *strings;
    const ElfW(Sym) *symbols;
    const uint32_t *hash; /* DT_GNU_HASH */
    const ElfW(Rela) *calls, *data;
    size_t calls_size, data_size;
};

static const char *const WATCHED[] = {"cublasLtMatmul", "cublasLtMatmulAlgoGetHeuristic"};

static void say(struct report *report, const char *state, const char *symbol, const char *path) {
    int written = snprintf(report->text + report->used, report->size - report->used, "%s\t%s\t%s\n", state,
                           symbol, path);
    if (written > 0 && report->used + (size_t)written < report->size) report->used += (size_t)written;
    report->text[report->used] = 0;
}

/* glibc writes absolute addresses into the dynamic section on x86-64 and AArch64; others keep offsets. */
static const void *at(ElfW(Addr) base, ElfW(Addr) pointer) {
    return (const void *)(pointer < base ? base + pointer : pointer);
}

static struct tables tables_of(ElfW(Addr) base, const ElfW(Dyn) *each) {
    struct tables found = {0};
    for (; each->d_tag != DT_NULL; each++) {
        ElfW(Addr) pointer = each->d_un.d_ptr;
        if (each->d_tag == DT_STRTAB) found.strings = at(base, pointer);
        if (each->d_tag == DT_SYMTAB) found.symbols = at(base, pointer);
        if (each->d_tag == DT_GNU_HASH) found.hash = at(base, pointer);
        if (each->d_tag == DT_JMPREL) found.calls = at(base, pointer);
        if (each->d_tag == DT_PLTRELSZ) found.calls_size = each->d_un.d_val;
        if (each->d_tag == DT_RELA) found.data = at(base, pointer);
        if (each->d_tag == DT_RELASZ) found.data_size = each->d_un.d_val;
    }
    return found;
}

static int is_cublaslt(const char *path) {
    const char *slash = strrchr(path, '/');
    return strncmp(slash == NULL ? path : slash + 1, "libcublasLt.so", 14) == 0;
}

static const char *state_of(const void *value, const void *object) {
    Dl_info info;
    if (value == NULL || dladdr(value, &info) == 0) return "unbound";
    if (is_ours(value)) return "ours";
    if (info.dli_fbase == object) return "unbound";
    return is_cublaslt(info.dli_fname) ? "past" : "elsewhere";
}

static void look(struct report *report, const struct dl_phdr_info *info, const struct tables *tables,
                 const ElfW(Rela) *relocation, size_t size) {
    Dl_info object;
    for (const ElfW(Rela) *end = relocation + size / sizeof *relocation; relocation < end; relocation++) {
        size_t number = sizeof(void *) == 8 ? relocation->r_info >> 32 : relocation->r_info >> 8;
        if (number == 0) continue;
        const char *name = tables->strings + tables->symbols[number].st_name;
        for (size_t i = 0; i < sizeof WATCHED / sizeof *WATCHED; i++) {
            if (strcmp(name, WATCHED[i]) != 0) continue;
            void *const *slot = (void *const *)(info->dlpi_addr + relocation->r_offset);
            if (dladdr((const void *)slot, &object) == 0) continue;
            say(report, state_of(*slot, object.dli_fbase), name, object.dli_fname);
        }
    }
}

/* Whether the object itself defines the function: the table of its exported names says so. */
static int defines(const struct tables *tables, const char *wanted) {
    if (tables->hash == NULL) return 0;
    uint32_t buckets = tables->hash[0], first = tables->hash[1], words = tables->hash[2], hash = 5381;
    const uint32_t *bucket = tables->hash + 4 + words * (sizeof(void *) / sizeof(uint32_t));
    const uint32_t *chain = bucket + buckets;
    for (const char *c = wanted; *c; c++) hash = hash * 33 + (uint8_t)*c;
    uint32_t number = buckets ? bucket[hash % buckets] : 0;
    for (; number >= first && number != 0; number++) {
        if ((chain[number - first] | 1) == (hash | 1) &&
            strcmp(tables->strings + tables->symbols[number].st_name, wanted) == 0)
            return 1;
        if (chain[number - first] & 1) return 0;
    }
    return 0;
}

static int look_at_object(struct dl_phdr_info *info, size_t size, void *argument) {
    (void)size;
    struct report *report = argument;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
        const ElfW(Dyn) *dynamic = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
        if (is_ours(dynamic) || is_cublaslt(info->dlpi_name)) return 0;
        struct tables tables = tables_of(info->dlpi_addr, dynamic);
        if (tables.strings == NULL || tables.symbols == NULL) return 0;
        for (size_t n = 0; n < sizeof WATCHED / sizeof *WATCHED; n++)
            if (defines(&tables, WATCHED[n]))
                say(report, "static", WATCHED[n], info->dlpi_name[0] ? info->dlpi_name : "the program");
        look(report, info, &tables, tables.calls, tables.calls_size);
        look(report, info, &tables, tables.data, tables.data_size);
    }
    return 0;
}

/* Write one line "STATE<tab>SYMBOL<tab>FILE" for each reference to cuBLASLt in this process.
 *
 * STATE: ours (its calls come here), past (they go to the real library), elsewhere (to another one),
 * unbound (never called so far); static (FILE brings a copy of its own); first (the definition that the process finds first is not ours, but
 * that of FILE). */
EXPORTED void pinner_cublaslt_consumers(char *text, size_t size) {
    struct report report = {text, size, 0};
    text[0] = 0;
    for (size_t i = 0; i < sizeof WATCHED / sizeof *WATCHED; i++) {
        Dl_info info;
        const void *first = dlsym(RTLD_DEFAULT, WATCHED[i]);
        if (first != NULL && !is_ours(first) && dladdr(first, &info) != 0)
            say(&report, "first", WATCHED[i], info.dli_fname);
    }
    dl_iterate_phdr(look_at_object, &report);
}
