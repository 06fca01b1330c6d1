/* Stands in for libcudart.so.N: the memory of a device that is the host's.
 *
 * tests/stackbisect/test_repro_cublaslt.py holds its names to the real library's. */
#include <stdlib.h>
#include <string.h>

enum { INVALID_VALUE = 1, MOST_ALIGNED = 256 };

int cudaMalloc(void **out, size_t size) {
    *out = aligned_alloc(MOST_ALIGNED, (size + MOST_ALIGNED - 1) / MOST_ALIGNED * MOST_ALIGNED);
    return *out == NULL;
}
int cudaMemcpy(void *to, const void *from, size_t size, int kind) {
    if (kind != 1 && kind != 2) return INVALID_VALUE; /* to the device, and back */
    memcpy(to, from, size);
    return 0;
}
int cudaDeviceSynchronize(void) { return 0; }
