/* What lies in the files that this library and Python share; layout.py says the same in Python.
 *
 * The library exports these lists as text (`pinner_cublaslt_layout`). Python compares that text with
 * its own before it uses the library, and each file carries its hash. */
#ifndef PINNER_LAYOUT_H
#define PINNER_LAYOUT_H

#include "abi.h"

/* F(name, attribute, bytes, default): the value of an attribute this version of cuBLASLt does not
 * have is its default, so that one problem has one key under all versions. */

/* cublasLtMatmulDescAttributes_t; 16 is in no header, and 12.8 and 13.1 answer for
 * it; 27 to 30 (atomic synchronisation) are gone in 13 */
#define DESC_FIELDS(F)                                                                             \
    F(compute, 0, 4, 0)                                                                            \
    F(scale, 1, 4, 0)                                                                              \
    F(pointer_mode, 2, 4, 0)                                                                       \
    F(transa, 3, 4, 0)                                                                             \
    F(transb, 4, 4, 0)                                                                             \
    F(transc, 5, 4, 0)                                                                             \
    F(fill, 6, 4, 2)                                                                               \
    F(epilogue, 7, 4, 1)                                                                           \
    F(bias_stride, 10, 8, 0)                                                                       \
    F(aux_ld, 12, 8, 0)                                                                            \
    F(aux_stride, 13, 8, 0)                                                                        \
    F(alpha_stride, 14, 8, 0)                                                                      \
    F(sm_target, 15, 4, 0)                                                                         \
    F(attribute16, 16, 4, 0)                                                                       \
    F(aux_type, 22, 4, -1)                                                                         \
    F(fast_accum, 25, 1, 0)                                                                        \
    F(bias_type, 26, 4, -1)                                                                        \
    F(sync_rows, 27, 4, 0)                                                                         \
    F(sync_cols, 28, 4, 0)                                                                         \
    F(a_scale_mode, 31, 4, 0)                                                                      \
    F(b_scale_mode, 32, 4, 0)                                                                      \
    F(c_scale_mode, 33, 4, 0)                                                                      \
    F(d_scale_mode, 34, 4, 0)                                                                      \
    F(aux_scale_mode, 35, 4, 0)                                                                    \
    F(d_out_scale_mode, 37, 4, 0)

/* cublasLtEmulationDescAttributes_t, read where the operation has such a descriptor */
#define EMULATION_FIELDS(F)                                                                        \
    F(emulation_strategy, 0, 4, 0)                                                                 \
    F(emulation_special_values, 1, 4, 0xffff)                                                      \
    F(emulation_mantissa_control, 2, 4, 0)                                                         \
    F(emulation_mantissa_bits, 3, 4, 0)                                                            \
    F(emulation_mantissa_offset, 4, 4, 0)

/* cublasLtMatrixLayoutAttribute_t, once for each of A, B, C and D */
#define MATRIX_FIELDS(F, m)                                                                        \
    F(m##_type, 0, 4, 0)                                                                           \
    F(m##_order, 1, 4, 0)                                                                          \
    F(m##_rows, 2, 8, 0)                                                                           \
    F(m##_cols, 3, 8, 0)                                                                           \
    F(m##_ld, 4, 8, 0)                                                                             \
    F(m##_batch, 5, 4, 1)                                                                          \
    F(m##_stride, 6, 8, 0)                                                                         \
    F(m##_plane, 7, 8, 0)                                                                          \
    F(m##_batch_mode, 8, 4, 0)

/* Descriptor attributes that are pointers. Only whether they are set counts: which scale there is
 * selects a kernel. They may be set between the question and the call, and so are part of the
 * question only. */
#define POINTER_FIELDS(F)                                                                          \
    F(a_scale, 17, 8, 0)                                                                           \
    F(b_scale, 18, 8, 0)                                                                           \
    F(c_scale, 19, 8, 0)                                                                           \
    F(d_scale, 20, 8, 0)                                                                           \
    F(d_amax, 21, 8, 0)                                                                            \
    F(aux_scale, 23, 8, 0)                                                                         \
    F(aux_amax, 24, 8, 0)                                                                          \
    F(sync_in, 29, 8, 0)                                                                           \
    F(sync_out, 30, 8, 0)                                                                          \
    F(d_out_scale, 36, 8, 0)

/* cublasLtMatmulPreferenceAttributes_t; max_waves is a float, kept as its bits */
#define PREFERENCE_FIELDS(F)                                                                       \
    F(search, 0, 4, 0)                                                                             \
    F(workspace, 1, 8, 0)                                                                          \
    F(reduction_mask, 3, 4, 7)                                                                     \
    F(a_align, 5, 4, 256)                                                                          \
    F(b_align, 6, 4, 256)                                                                          \
    F(c_align, 7, 4, 256)                                                                          \
    F(d_align, 8, 4, 256)                                                                          \
    F(max_waves, 9, 4, 0)                                                                          \
    F(impl_mask, 12, 8, -1)

/* cublasLtMatmulAlgoConfigAttributes_t; 10 is in no header, and 12.8 and 13.1 read and
 * set it */
#define ALGO_FIELDS(F)                                                                             \
    F(id, 0, 4, 0)                                                                                 \
    F(tile, 1, 4, 0)                                                                               \
    F(splitk, 2, 4, 0)                                                                             \
    F(reduction, 3, 4, 0)                                                                          \
    F(swizzle, 4, 4, 0)                                                                            \
    F(custom, 5, 4, 0)                                                                             \
    F(stages, 6, 4, 0)                                                                             \
    F(inner, 7, 2, 0)                                                                              \
    F(cluster, 8, 2, 0)                                                                            \
    F(field10, 10, 2, 0)

/* The problem that a call to cublasLtMatmul shows; `major` is that of the library. */
#define PROBLEM_FIELDS(F)                                                                          \
    F(major, -1, 0, 0)                                                                             \
    F(emulation, -1, 0, 0)                                                                         \
    DESC_FIELDS(F)                                                                                 \
    EMULATION_FIELDS(F)                                                                            \
    MATRIX_FIELDS(F, a)                                                                            \
    MATRIX_FIELDS(F, b)                                                                            \
    MATRIX_FIELDS(F, c)                                                                            \
    MATRIX_FIELDS(F, d)

/* What only the question for an algorithm holds; alignments are powers of two up to 256, 0 for NULL */
#define QUESTION_FIELDS(F)                                                                         \
    F(bias_align, -1, 0, 0)                                                                        \
    F(aux_align, -1, 0, 0)                                                                         \
    POINTER_FIELDS(F)                                                                              \
    PREFERENCE_FIELDS(F)

#define AS_NUMBER(name, attribute, size, otherwise) KEY_##name,
enum {
    PROBLEM_FIELDS(AS_NUMBER) PROBLEM_END,
    KEY_before_question = PROBLEM_END - 1,
    QUESTION_FIELDS(AS_NUMBER) KEY_END
};
#undef AS_NUMBER
#define AS_NUMBER(name, attribute, size, otherwise) ALGO_##name,
enum { ALGO_FIELDS(AS_NUMBER) ALGO_END };
#undef AS_NUMBER

struct key {
    int64_t value[KEY_END];
};

struct fields {
    int64_t value[ALGO_END];
    uint64_t known; /* bit n: this version of the library has field n */
};

enum { TEXT = 64, NAME = 48, CANDIDATES = 16, SYMBOLS = 96, PROCESS_TEXT = 8192, CAPACITY = 8192, CALLS = 64, MATRICES = 5,
       SCALAR = 16 };

/* What a record tells. */
enum kind {
    KIND_HEURISTIC = 1, /* the library's answer, in a run that records */
    KIND_FORCED,        /* our answer from the lock */
    KIND_FALLBACK,      /* the library's answer to what is not in the lock */
    KIND_MISSED,        /* not in the lock, and refused */
    KIND_INVALID,       /* in the lock, and cannot be forced: see reason */
    KIND_ASKED,         /* several answers were asked for, and none of them has been used yet */
    KIND_REFUSED,       /* the library itself has no algorithm */
    KIND_BYPASS,        /* a matmul of a locked problem with another algorithm */
    KIND_UNASKED,       /* a matmul with an algorithm that no question under our eyes returned */
    KIND_IMPLICIT       /* a matmul without an algorithm: the library chose inside */
};

/* Why a locked algorithm could not be forced. */
enum reason {
    REASON_NONE = 0,
    REASON_CHECK,     /* AlgoCheck refused it */
    REASON_WORKSPACE, /* it needs more workspace than was offered */
    REASON_VERSION,   /* recorded with another version of the library */
    REASON_REBUILD,   /* could not be built from its fields */
    REASON_DEVICE,    /* recorded on another GPU */
    REASON_MATMUL,    /* cublasLtMatmul returned an error for it */
    REASON_FIELDS     /* the lock's fields are not those of its blob */
};

/* One decision, or one kind of trouble, for one key. */
struct record {
    uint32_t state; /* 0 free, 1 being written, 2 whole */
    uint32_t kind;
    uint32_t reason;
    int32_t status;   /* the cublasStatus_t that came back, where one did */
    int64_t version;  /* cublasLtGetVersion(), or the locked one where the lock answered */
    uint64_t time;    /* ns since 1970 */
    uint64_t asked;   /* questions answered so */
    uint64_t used;    /* matmuls that ran so */
    uint32_t offered; /* how many algorithms the library returned */
    uint32_t rebuilt; /* 1: built from fields under another version */
    uint32_t settles_as;
    uint32_t candidates; /* how many of the following are set */
    uint64_t candidate[CANDIDATES]; /* hashes of the algorithms that were returned */
    uint64_t candidate_needs[CANDIDATES];
    uint64_t needs; /* workspace, bytes */
    uint64_t key_hash;
    uint64_t problem_hash;
    struct algo algo;
    struct fields fields;
    struct key key;
    char caller[TEXT];
};

/* One matmul, as a trace hears of it. */
struct call {
    uint32_t kind;       /* an enum kind: where its algorithm came from */
    int32_t status;      /* the cublasStatus_t that it returned */
    int64_t version;     /* cublasLtGetVersion() */
    struct algo algo;
    struct fields fields;
    struct key key;      /* the problem; nothing of the question */
    uint64_t address[MATRICES]; /* of A, B, C, D, and of the bias; 0: none */
    uint64_t workspace;  /* bytes that it was given */
    uint8_t alpha[SCALAR], beta[SCALAR]; /* where they are on the host, in the type of `scale`; else 0 */
    uint64_t pointers;   /* bit n: pointer n of POINTER_FIELDS is set */
    char symbol[NAME];   /* of libcublas, whose calls tell no more than this; else empty */
};

struct symbol {
    char name[NAME];
    uint64_t calls;
    uint64_t autotuned; /* calls with algorithm 999 */
};

struct map {
    char magic[8]; /* written last: a file without it tells of nothing */
    uint64_t layout;
    uint64_t record_size;
    uint64_t capacity;
    int64_t pid;
    int64_t parent;
    uint64_t time;
    uint64_t enforcing;
    uint64_t questions;
    uint64_t matmuls;
    uint64_t lost;      /* decisions that found no room */
    uint64_t ambiguous; /* calls whose major version could not be told from another one's */
    uint64_t symbols;   /* how many of the following are set */
    struct symbol symbol[SYMBOLS];
    char device[TEXT];
    char process[PROCESS_TEXT]; /* JSON: who this process, or the one it was forked from, is */
    struct record record[];
};

/* The lock, compiled for this library. */
struct pin {
    struct key key;
    struct algo algo;
    struct fields fields;
    int64_t version;
    int64_t needs; /* workspace, bytes; -1: not in the lock */
    char device[TEXT];
};

struct pins {
    char magic[8];
    uint64_t layout;
    uint64_t pin_size;
    uint64_t count;
    struct pin pin[];
};

#define MAP_MAGIC "pinltmap"
#define PINS_MAGIC "pinltpin"

/* How a process is told what to do. */
struct settings {
    uint64_t layout;
    uint64_t enforcing;
    uint64_t on_miss;  /* 0 fallback, 1 error */
    uint64_t rebuild;  /* 1: may build from fields under another version */
    uint64_t any_gpu;  /* 1: what was recorded on another GPU may be tried */
    uint64_t capacity; /* records; 0: CAPACITY */
    char prefix[4096]; /* the map file is PREFIX-PID-NONCE.map */
    char process[PROCESS_TEXT];
};
#endif
