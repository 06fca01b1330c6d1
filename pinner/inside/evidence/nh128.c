/* The sums of the nh128 digest over host memory. nh128.py says what is computed, and why.
 *
 * Compiled by nh128_native.py on first use, for the processor it runs on. Every path below gives
 * the same 128 bits; only little-endian machines are served.
 */
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "nh128 reads little-endian words"
#endif

#define COLUMNS 8
#define ROWS 64
#define LANES 4
#define WORD 8
#define BLOCK_BYTES 4096
#define MOST_THREADS 64

_Static_assert(BLOCK_BYTES == COLUMNS * ROWS * WORD, "a block");

static uint64_t keys[ROWS + LANES - 1];

__attribute__((constructor)) static void make_keys(void) {
    uint64_t state = 0;
    for (int i = 0; i < ROWS + LANES - 1; i++) {
        uint64_t z = (state += 0x9E3779B97F4A7C15u);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        keys[i] = z ^ (z >> 31);
    }
}

/* A vector of WIDE words: load, broadcast of a key, the product of both halves after adding it. */
#if defined(__AVX512F__) && defined(__AVX512BW__)
#include <immintrin.h>
typedef __m512i vector;
#define WIDE 8
#define ZERO _mm512_setzero_si512()
#define LOAD(p) _mm512_loadu_si512((const void *)(p))
#define STORE(p, v) _mm512_storeu_si512((void *)(p), v)
#define EVERY(k) _mm512_set1_epi64((long long)(k))
#define KEYED(w, k) _mm512_add_epi32(w, k)
#define ADD_PRODUCT(s, x) _mm512_add_epi64(s, _mm512_mul_epu32(x, _mm512_srli_epi64(x, 32)))
#elif defined(__AVX2__)
#include <immintrin.h>
typedef __m256i vector;
#define WIDE 4
#define ZERO _mm256_setzero_si256()
#define LOAD(p) _mm256_loadu_si256((const __m256i *)(p))
#define STORE(p, v) _mm256_storeu_si256((__m256i *)(p), v)
#define EVERY(k) _mm256_set1_epi64x((long long)(k))
#define KEYED(w, k) _mm256_add_epi32(w, k)
#define ADD_PRODUCT(s, x) _mm256_add_epi64(s, _mm256_mul_epu32(x, _mm256_srli_epi64(x, 32)))
#elif defined(__SSE2__)
#include <emmintrin.h>
typedef __m128i vector;
#define WIDE 2
#define ZERO _mm_setzero_si128()
#define LOAD(p) _mm_loadu_si128((const __m128i *)(p))
#define STORE(p, v) _mm_storeu_si128((__m128i *)(p), v)
#define EVERY(k) _mm_set1_epi64x((long long)(k))
#define KEYED(w, k) _mm_add_epi32(w, k)
#define ADD_PRODUCT(s, x) _mm_add_epi64(s, _mm_mul_epu32(x, _mm_srli_epi64(x, 32)))
#elif defined(__ARM_NEON) && defined(__aarch64__)
#include <arm_neon.h>
typedef uint64x2_t vector;
#define WIDE 2
#define ZERO vdupq_n_u64(0)
#define LOAD(p) vreinterpretq_u64_u8(vld1q_u8((const uint8_t *)(p)))
#define STORE(p, v) vst1q_u64((uint64_t *)(p), v)
#define EVERY(k) vdupq_n_u64(k)
#define KEYED(w, k) \
    vreinterpretq_u64_u32(vaddq_u32(vreinterpretq_u32_u64(w), vreinterpretq_u32_u64(k)))
#define ADD_PRODUCT(s, x) vmlal_u32(s, vmovn_u64(x), vshrn_n_u64(x, 32))
#else
typedef uint64_t vector;
#define WIDE 1
#define ZERO 0
#define LOAD(p) load_word(p)
#define STORE(p, v) (*(p) = (v))
#define EVERY(k) (k)
#define KEYED(w, k) ((((w) + (k)) & 0xFFFFFFFFu) | ((((w) >> 32) + ((k) >> 32)) << 32))
#define ADD_PRODUCT(s, x) ((s) + ((x) & 0xFFFFFFFFu) * ((x) >> 32))
static inline uint64_t load_word(const void *p) {
    uint64_t word;
    memcpy(&word, p, WORD);
    return word;
}
#endif

/* Adds `rows` whole rows to the sums of each lane and column. */
static void add_rows(const unsigned char *data, int rows, uint64_t sums[LANES][COLUMNS]) {
    for (int from = 0; from < COLUMNS; from += WIDE) {
        vector s0 = ZERO, s1 = ZERO, s2 = ZERO, s3 = ZERO;
        vector k0 = EVERY(keys[0]), k1 = EVERY(keys[1]), k2 = EVERY(keys[2]);
        for (int row = 0; row < rows; row++) {
            vector word = LOAD(data + (row * COLUMNS + from) * WORD);
            vector k3 = EVERY(keys[row + 3]);
            vector x0 = KEYED(word, k0), x1 = KEYED(word, k1);
            vector x2 = KEYED(word, k2), x3 = KEYED(word, k3);
            s0 = ADD_PRODUCT(s0, x0);
            s1 = ADD_PRODUCT(s1, x1);
            s2 = ADD_PRODUCT(s2, x2);
            s3 = ADD_PRODUCT(s3, x3);
            k0 = k1;
            k1 = k2;
            k2 = k3;
        }
        STORE(&sums[0][from], s0);
        STORE(&sums[1][from], s1);
        STORE(&sums[2][from], s2);
        STORE(&sums[3][from], s3);
    }
}

static inline uint64_t step(uint64_t h, uint64_t sum, uint64_t multiplier) {
    h ^= sum;
    h ^= h >> 32;
    h *= multiplier;
    return h ^ (h >> 29);
}

/* Mixes the sums of each column with its number and adds them to the digest's two halves. */
static void add_columns(
    uint64_t sums[LANES][COLUMNS], int columns, uint64_t number, uint64_t out[2]) {
    uint64_t first = 0, second = 0;
    for (int column = 0; column < columns; column++) {
        uint64_t a = (number + column + 1) * 0x9E3779B97F4A7C15u;
        uint64_t b = (number + column + 1) * 0xD1B54A32D192ED03u;
        for (int lane = 0; lane < LANES; lane++) {
            a = step(a, sums[lane][column], 0xBF58476D1CE4E5B9u);
            b = step(b, sums[LANES - 1 - lane][column], 0xFF51AFD7ED558CCDu);
        }
        a *= 0x94D049BB133111EBu;
        b *= 0xC4CEB9FE1A85EC53u;
        first += a ^ (a >> 32);
        second += b ^ (b >> 32);
    }
    out[0] += first;
    out[1] += second;
}

/* The last block: fewer rows, and a last row that may end within a word. */
static void add_part(const unsigned char *data, uint64_t bytes, uint64_t block, uint64_t out[2]) {
    uint64_t sums[LANES][COLUMNS];
    int rows = (int)(bytes / (COLUMNS * WORD));
    int rest = (int)(bytes % (COLUMNS * WORD));
    add_rows(data, rows, sums);
    unsigned char last[COLUMNS * WORD] = {0};
    memcpy(last, data + bytes - rest, rest);
    int words = (rest + WORD - 1) / WORD;
    for (int column = 0; column < words; column++) {
        uint64_t word;
        memcpy(&word, last + column * WORD, WORD);
        for (int lane = 0; lane < LANES; lane++) {
            uint64_t key = keys[rows + lane];
            uint64_t low = (uint32_t)((uint32_t)word + (uint32_t)key);
            uint64_t high = (uint32_t)((uint32_t)(word >> 32) + (uint32_t)(key >> 32));
            sums[lane][column] += low * high;
        }
    }
    add_columns(sums, rows ? COLUMNS : words, block * COLUMNS, out);
}

static void add_range(const unsigned char *data, uint64_t bytes, uint64_t block, uint64_t out[2]) {
    uint64_t sums[LANES][COLUMNS];
    for (; bytes >= BLOCK_BYTES; bytes -= BLOCK_BYTES, data += BLOCK_BYTES, block++) {
        add_rows(data, ROWS, sums);
        add_columns(sums, COLUMNS, block * COLUMNS, out);
    }
    if (bytes) add_part(data, bytes, block, out);
}

struct range {
    const unsigned char *data;
    uint64_t bytes, block, out[2];
};

static void *work(void *given) {
    struct range *range = given;
    add_range(range->data, range->bytes, range->block, range->out);
    return 0;
}

/* Adds the sums of `bytes` bytes to `out`. `block`: the number of the first block, where these are
 * a part of more bytes; all parts but the last are whole blocks. */
void pinner_nh128(
    const unsigned char *data, uint64_t bytes, uint64_t block, uint32_t threads, uint64_t out[2]) {
    uint64_t blocks = bytes / BLOCK_BYTES;
    if (threads > MOST_THREADS) threads = MOST_THREADS;
    if (threads > blocks) threads = (uint32_t)blocks;
    if (threads < 2) {
        add_range(data, bytes, block, out);
        return;
    }
    struct range ranges[MOST_THREADS];
    pthread_t ids[MOST_THREADS];
    int started[MOST_THREADS];
    uint64_t each = blocks / threads * BLOCK_BYTES;
    for (uint32_t i = 0; i < threads; i++) {
        uint64_t from = i * each;
        uint64_t size = i + 1 < threads ? each : bytes - from;
        ranges[i] = (struct range){data + from, size, block + from / BLOCK_BYTES, {0, 0}};
        started[i] = i + 1 < threads && !pthread_create(&ids[i], 0, work, &ranges[i]);
        if (!started[i]) work(&ranges[i]);
    }
    for (uint32_t i = 0; i < threads; i++) {
        if (started[i]) pthread_join(ids[i], 0);
        out[0] += ranges[i].out[0];
        out[1] += ranges[i].out[1];
    }
}

/* A tensor with gaps: `strides` in bytes, sizes and strides from the slowest axis to the fastest. */
struct view {
    const unsigned char *data;
    uint64_t item, axes;
    const int64_t *sizes, *strides;
};

#define MOST_AXES 32

static void copy_items(
    unsigned char *to, const unsigned char *from, int64_t count, int64_t stride, uint64_t item) {
    if (stride == (int64_t)item) {
        memcpy(to, from, count * item);
        return;
    }
#define COPY(size) \
    for (int64_t i = 0; i < count; i++) memcpy(to + i * size, from + i * stride, size)
    switch (item) {
    case 1: COPY(1); break;
    case 2: COPY(2); break;
    case 4: COPY(4); break;
    case 8: COPY(8); break;
    default: COPY(16); break;
    }
#undef COPY
}

/* Copies `count` elements, in logical order from number `first` on, to `to`. */
static void gather(const struct view *view, uint64_t first, uint64_t count, unsigned char *to) {
    int64_t at[MOST_AXES];
    const unsigned char *row = view->data;
    int fastest = (int)view->axes - 1;
    for (int axis = fastest; axis >= 0; axis--) {
        at[axis] = (int64_t)(first % (uint64_t)view->sizes[axis]);
        first /= (uint64_t)view->sizes[axis];
        row += at[axis] * view->strides[axis];
    }
    while (count) {
        int64_t run = view->sizes[fastest] - at[fastest];
        if ((uint64_t)run > count) run = (int64_t)count;
        copy_items(to, row, run, view->strides[fastest], view->item);
        to += run * view->item;
        count -= run;
        row += run * view->strides[fastest];
        at[fastest] += run;
        for (int axis = fastest; axis > 0 && at[axis] == view->sizes[axis]; axis--) {
            row += view->strides[axis - 1] - at[axis] * view->strides[axis];
            at[axis] = 0;
            at[axis - 1]++;
        }
    }
}

/* Adds the sums of a view with at least one axis and one element; it is copied block by block.
 * `item`: 1, 2, 4, 8 or 16 bytes, of which a block is a multiple. `elements`: of all axes. */
void pinner_nh128_view(
    const unsigned char *data, uint64_t item, uint64_t elements, uint64_t axes,
    const int64_t *sizes, const int64_t *strides, uint64_t out[2]) {
    struct view view = {data, item, axes, sizes, strides};
    uint64_t each = BLOCK_BYTES / item;
    unsigned char block[BLOCK_BYTES];
    for (uint64_t number = 0; elements; number++) {
        uint64_t count = elements < each ? elements : each;
        gather(&view, number * each, count, block);
        add_range(block, count * item, number, out);
        elements -= count;
    }
}

/* The sums of `count` pieces of memory, each from its own beginning. */
void pinner_nh128_many(
    const unsigned char *const *data, const uint64_t *bytes, uint64_t count, uint64_t *out) {
    for (uint64_t i = 0; i < count; i++) {
        out[2 * i] = out[2 * i + 1] = 0;
        add_range(data[i], bytes[i], 0, out + 2 * i);
    }
}
