/* Stands in for libnvidia-ml.so.1: two GPUs of a kind, or what FAKE_NVML says.
 *
 * FAKE_NVML=two    two H200                 FAKE_NVML=mixed  an H200 and an A100
 * FAKE_NVML=mig    one H200 cut in two      FAKE_NVML=old    two H200, and a driver without MIG
 * FAKE_NVML=none   no GPU: nvmlInit fails
 * The real one is held to these calls by the test marked gpu in tests/pinner/test_facts.py. */
#include <stdlib.h>
#include <string.h>

typedef void *device;
enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6 };

static int is(const char *kind) {
    const char *set = getenv("FAKE_NVML");
    return set != NULL && strcmp(set, kind) == 0;
}
static int number(device d) { return (int)(long)d; }
static int is_part(device d) { return number(d) >= 100; }
static int is_a100(device d) { return is("mixed") && number(d) == 2; }
static int copy(char *out, unsigned length, const char *text) {
    strncpy(out, text, length);
    return OK;
}

int nvmlInit_v2(void) { return is("none") ? NOT_FOUND : OK; }
int nvmlShutdown(void) { return OK; }
int nvmlSystemGetDriverVersion(char *out, unsigned length) { return copy(out, length, "580.65.06"); }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = is("mig") ? 1 : 2; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *out) {
    *out = (device)(long)(index + 1);
    return OK;
}
int nvmlDeviceGetName(device d, char *out, unsigned length) {
    if (is_part(d)) return copy(out, length, "NVIDIA H200 MIG 3g.71gb");
    return copy(out, length, is_a100(d) ? "NVIDIA A100-SXM4-80GB" : "NVIDIA H200");
}
int nvmlDeviceGetUUID(device d, char *out, unsigned length) {
    char text[] = "GPU-1111-0";
    if (is_part(d)) memcpy(text, "MIG", 3);
    text[9] = (char)('0' + number(d) % 100);
    return copy(out, length, text);
}
int nvmlDeviceGetCudaComputeCapability(device d, int *major, int *minor) {
    *major = is_a100(d) ? 8 : 9;
    *minor = 0;
    return OK;
}
int nvmlDeviceGetMemoryInfo(device d, unsigned long long *sizes) {
    sizes[0] = (is_a100(d) ? 80ULL : 139ULL) << 30;
    return OK;
}
int nvmlDeviceGetMigMode(device d, unsigned *now, unsigned *pending) {
    if (is("old")) return NOT_SUPPORTED;
    *now = *pending = is("mig");
    return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(device d, unsigned *count) { *count = 7; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(device d, unsigned index, device *out) {
    if (index >= 2) return NOT_FOUND;
    *out = (device)(long)(101 + index);
    return OK;
}
int nvmlDeviceGetAttributes_v2(device d, unsigned *attributes) {
    if (!is_part(d)) return NOT_SUPPORTED;
    attributes[0] = 60;
    return OK;
}
int nvmlDeviceGetNumGpuCores(device d, unsigned *cores) {
    *cores = is_a100(d) ? 108 * 64 : 132 * 128;
    return OK;
}
