/* libcuda.so.1: the part of the driver API that a probe needs. Memory is the host's; time is the scenario's.
 *
 * The device has a clock of its own that only work moves on, so that events tell the scenario's times however busy
 * this machine is. Not for use by several threads at once.
 */
#include "fake.h"

enum {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NOT_FOUND = 500,
    MISMATCH = 803,
    UNKNOWN = 999
};

#define TOLD(function)                \
    do {                              \
        int status = told(function);  \
        if (status)                   \
            return status;            \
    } while (0)

#define READY(function)                                  \
    do {                                                 \
        TOLD(function);                                  \
        if (!initialised)                                \
            return NOT_INITIALIZED;                      \
    } while (0)

#define CURRENT(function)                                \
    do {                                                 \
        READY(function);                                 \
        if (!current)                                    \
            return INVALID_CONTEXT;                      \
    } while (0)

typedef unsigned long long pointer;

typedef struct allocation {
    struct allocation *next;
    char *start;
    size_t size;
    int on_device;
} allocation;

static int initialised, visible[64], visible_count;
static int contexts[64]; /* only their addresses count */
static int retained[64];
static int *current;
static allocation *allocations;
static size_t taken;
static double device_s, busy_until_s;

/* Work of so many seconds is put on the device, which has begun no earlier than now. */
EXPORT void labctl_fake_work(double span_s) {
    double now = now_s();
    device_s += span_s;
    busy_until_s = (busy_until_s > now ? busy_until_s : now) + span_s;
}

EXPORT int labctl_fake_has_context(void) { return current != NULL; }

static int has_tensorflow(void) {
    char line[1024];
    FILE *maps = fopen("/proc/self/maps", "re");
    int found = 0;
    while (maps && !found && fgets(line, sizeof line, maps))
        found = strstr(line, "/libtensorflow_framework.so") != NULL || strstr(line, "/libtensorflow_cc.so") != NULL;
    if (maps)
        fclose(maps);
    return found;
}

/* As CUDA_VISIBLE_DEVICES says: the first index that is none hides all later ones. */
static void see_devices(void) {
    int count = (int)number("gpu_count");
    const char *wish = getenv("CUDA_VISIBLE_DEVICES");
    visible_count = 0;
    if (!wish) {
        for (; visible_count < count; visible_count++)
            visible[visible_count] = visible_count;
        return;
    }
    while (*wish && visible_count < 64) {
        char *end;
        long index = strtol(wish, &end, 10);
        if (end == wish || index < 0 || index >= count)
            return;
        visible[visible_count++] = (int)index;
        wish = *end == ',' ? end + 1 : "";
    }
}

EXPORT int cuInit(unsigned flags) {
    char library[64] = "", module[64] = "", name[32];
    TOLD("cuInit");
    if (flags)
        return INVALID_VALUE;
    lookup("driver_version", library, sizeof library);
    lookup("module_version", module, sizeof module);
    if (!*module)
        return NO_DEVICE;
    if (strcmp(library, module) != 0)
        return MISMATCH;
    if (node_errno("nvidiactl"))
        return NO_DEVICE;
    if (node_errno("nvidia-uvm"))
        return UNKNOWN;
    see_devices();
    for (int each = 0; each < visible_count; each++) {
        snprintf(name, sizeof name, "nvidia%d", visible[each]);
        if (node_errno(name))
            return NO_DEVICE;
    }
    if (!visible_count || (!number("tensorflow_sees_gpus") && has_tensorflow()))
        return NO_DEVICE;
    if (!initialised)
        wake();
    initialised = 1;
    return OK;
}

EXPORT int cuDriverGetVersion(int *version) {
    TOLD("cuDriverGetVersion");
    *version = (int)number("cuda_version");
    return OK;
}

static const struct {
    int code;
    const char *name, *text;
} errors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {34, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."},
    {304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
    {804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "forward compatibility was attempted on non supported HW"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

EXPORT int cuGetErrorName(int code, const char **name) {
    for (size_t each = 0; each < sizeof errors / sizeof *errors; each++)
        if (errors[each].code == code) {
            *name = errors[each].name;
            return OK;
        }
    *name = NULL;
    return INVALID_VALUE;
}

EXPORT int cuGetErrorString(int code, const char **text) {
    for (size_t each = 0; each < sizeof errors / sizeof *errors; each++)
        if (errors[each].code == code) {
            *text = errors[each].text;
            return OK;
        }
    *text = NULL;
    return INVALID_VALUE;
}

EXPORT int cuDeviceGetCount(int *count) {
    READY("cuDeviceGetCount");
    *count = visible_count;
    return OK;
}

EXPORT int cuDeviceGet(int *device, int ordinal) {
    READY("cuDeviceGet");
    *device = ordinal;
    return ordinal >= 0 && ordinal < visible_count ? OK : INVALID_DEVICE;
}

static int text_of(int device, const char *name, char *into, int size) {
    char key[64];
    if (device < 0 || device >= visible_count)
        return INVALID_DEVICE;
    snprintf(key, sizeof key, "gpu%d_%s", visible[device], name);
    lookup(key, into, (size_t)size);
    return OK;
}

EXPORT int cuDeviceGetName(char *into, int size, int device) {
    READY("cuDeviceGetName");
    return text_of(device, "name", into, size);
}

EXPORT int cuDeviceGetPCIBusId(char *into, int size, int device) {
    READY("cuDeviceGetPCIBusId");
    return text_of(device, "pci", into, size);
}

/* The 16 bytes of `GPU-01234567-89ab-…`. */
EXPORT int cuDeviceGetUuid_v2(unsigned char *into, int device) {
    char uuid[64] = "";
    READY("cuDeviceGetUuid_v2");
    int status = text_of(device, "uuid", uuid, sizeof uuid);
    const char *rest = uuid + 4;
    for (int each = 0; !status && each < 16 && *rest; each++) {
        unsigned value;
        rest += *rest == '-';
        sscanf(rest, "%2x", &value);
        into[each] = (unsigned char)value;
        rest += 2;
    }
    return status;
}

EXPORT int cuDeviceGetUuid(unsigned char *into, int device) { return cuDeviceGetUuid_v2(into, device); }

EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    READY("cuDeviceTotalMem_v2");
    if (device < 0 || device >= visible_count)
        return INVALID_DEVICE;
    *bytes = (size_t)of_gpu(visible[device], "memory_bytes");
    return OK;
}

EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
    READY("cuDeviceGetAttribute");
    if (device < 0 || device >= visible_count)
        return INVALID_DEVICE;
    int gpu = visible[device];
    switch (attribute) {
    case 13: *value = 1000 * (int)of_gpu(gpu, "sm_clock_max_mhz"); break;
    case 16: *value = 40; break; /* multiprocessors */
    case 36: *value = 1000 * (int)of_gpu(gpu, "memory_clock_max_mhz"); break;
    case 75: *value = (int)of_gpu(gpu, "major"); break;
    case 76: *value = (int)of_gpu(gpu, "minor"); break;
    default: *value = 0;
    }
    return OK;
}

EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) {
    READY("cuDevicePrimaryCtxRetain");
    if (device < 0 || device >= visible_count)
        return INVALID_DEVICE;
    if (!retained[device]++)
        wait_for(real("context_s"));
    *context = &contexts[device];
    return OK;
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int device) {
    READY("cuDevicePrimaryCtxRelease_v2");
    if (device < 0 || device >= visible_count || !retained[device])
        return INVALID_CONTEXT;
    if (!--retained[device] && current == &contexts[device])
        current = NULL;
    return OK;
}

EXPORT int cuDevicePrimaryCtxRelease(int device) { return cuDevicePrimaryCtxRelease_v2(device); }

EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    READY("cuDevicePrimaryCtxGetState");
    *flags = 0;
    *active = retained[device] > 0;
    return OK;
}

EXPORT int cuCtxCreate_v2(void **context, unsigned flags, int device) {
    (void)flags;
    int status = cuDevicePrimaryCtxRetain(context, device);
    if (!status)
        current = *context;
    return status;
}

EXPORT int cuCtxDestroy_v2(void *context) { return cuDevicePrimaryCtxRelease_v2((int)((int *)context - contexts)); }

EXPORT int cuCtxSetCurrent(void *context) {
    READY("cuCtxSetCurrent");
    current = context;
    return OK;
}

EXPORT int cuCtxGetCurrent(void **context) {
    READY("cuCtxGetCurrent");
    *context = current;
    return OK;
}

EXPORT int cuCtxSynchronize(void) {
    CURRENT("cuCtxSynchronize");
    wait_until(busy_until_s);
    return OK;
}

static size_t room(void) {
    int gpu = visible[current - contexts];
    return (size_t)(of_gpu(gpu, "memory_bytes") - of_gpu(gpu, "used_bytes"));
}

EXPORT int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    CURRENT("cuMemGetInfo_v2");
    *total = (size_t)of_gpu(visible[current - contexts], "memory_bytes");
    *free_bytes = room() - taken;
    return OK;
}

static int take(size_t size, int on_device, char **start) {
    allocation *made = malloc(sizeof *made);
    *start = made ? malloc(size ? size : 1) : NULL;
    if (!*start) {
        free(made);
        return OUT_OF_MEMORY;
    }
    *made = (allocation){allocations, *start, size, on_device};
    allocations = made;
    taken += on_device ? size : 0;
    return OK;
}

static int give_back(char *start, int on_device) {
    for (allocation **each = &allocations; *each; each = &(*each)->next)
        if ((*each)->start == start && (*each)->on_device == on_device) {
            allocation *found = *each;
            *each = found->next;
            taken -= on_device ? found->size : 0;
            free(found->start);
            free(found);
            return OK;
        }
    return INVALID_VALUE;
}

static const allocation *holds(const void *address, size_t size, int on_device) {
    const char *start = address;
    for (const allocation *each = allocations; each; each = each->next)
        if (each->on_device == on_device && start >= each->start && start + size <= each->start + each->size)
            return each;
    return NULL;
}

EXPORT int cuMemAlloc_v2(pointer *made, size_t size) {
    char *start;
    CURRENT("cuMemAlloc_v2");
    if (!size)
        return INVALID_VALUE;
    if (taken + size > room())
        return OUT_OF_MEMORY;
    int status = take(size, 1, &start);
    if (!status)
        *made = (pointer)(uintptr_t)start;
    return status;
}

EXPORT int cuMemFree_v2(pointer given) {
    CURRENT("cuMemFree_v2");
    wait_until(busy_until_s);
    return give_back((char *)(uintptr_t)given, 1);
}

EXPORT int cuMemHostAlloc(void **made, size_t size, unsigned flags) {
    (void)flags;
    CURRENT("cuMemHostAlloc");
    return take(size, 0, (char **)made);
}

EXPORT int cuMemAllocHost_v2(void **made, size_t size) { return cuMemHostAlloc(made, size, 0); }

EXPORT int cuMemFreeHost(void *given) {
    CURRENT("cuMemFreeHost");
    return give_back(given, 0);
}

static int copy(void *into, const void *from, size_t size, const void *host) {
    double rate = real(holds(host, size, 0) ? "pinned_bytes_per_s" : "pageable_bytes_per_s");
    memcpy(into, from, size);
    labctl_fake_work(rate > 0 ? (double)size / rate : 0);
    return OK;
}

EXPORT int cuMemcpyHtoD_v2(pointer into, const void *from, size_t size) {
    CURRENT("cuMemcpyHtoD_v2");
    if (!holds((void *)(uintptr_t)into, size, 1))
        return INVALID_VALUE;
    copy((void *)(uintptr_t)into, from, size, from);
    wait_until(busy_until_s);
    return OK;
}

EXPORT int cuMemcpyDtoH_v2(void *into, pointer from, size_t size) {
    CURRENT("cuMemcpyDtoH_v2");
    if (!holds((void *)(uintptr_t)from, size, 1))
        return INVALID_VALUE;
    copy(into, (void *)(uintptr_t)from, size, into);
    wait_until(busy_until_s);
    return OK;
}

EXPORT int cuMemcpyHtoDAsync_v2(pointer into, const void *from, size_t size, void *stream) {
    (void)stream;
    CURRENT("cuMemcpyHtoDAsync_v2");
    return holds((void *)(uintptr_t)into, size, 1) ? copy((void *)(uintptr_t)into, from, size, from) : INVALID_VALUE;
}

EXPORT int cuMemcpyDtoHAsync_v2(void *into, pointer from, size_t size, void *stream) {
    (void)stream;
    CURRENT("cuMemcpyDtoHAsync_v2");
    return holds((void *)(uintptr_t)from, size, 1) ? copy(into, (void *)(uintptr_t)from, size, into) : INVALID_VALUE;
}

EXPORT int cuMemsetD8_v2(pointer into, unsigned char value, size_t size) {
    CURRENT("cuMemsetD8_v2");
    if (!holds((void *)(uintptr_t)into, size, 1))
        return INVALID_VALUE;
    memset((void *)(uintptr_t)into, value, size);
    return OK;
}

EXPORT int cuStreamCreate(void **stream, unsigned flags) {
    (void)flags;
    CURRENT("cuStreamCreate");
    *stream = &device_s;
    return OK;
}

EXPORT int cuStreamSynchronize(void *stream) {
    (void)stream;
    CURRENT("cuStreamSynchronize");
    wait_until(busy_until_s);
    return OK;
}

EXPORT int cuStreamDestroy_v2(void *stream) {
    (void)stream;
    CURRENT("cuStreamDestroy_v2");
    return OK;
}

EXPORT int cuEventCreate(double **event, unsigned flags) {
    (void)flags;
    CURRENT("cuEventCreate");
    *event = calloc(1, sizeof **event);
    return *event ? OK : OUT_OF_MEMORY;
}

EXPORT int cuEventRecord(double *event, void *stream) {
    (void)stream;
    CURRENT("cuEventRecord");
    *event = device_s;
    return OK;
}

EXPORT int cuEventSynchronize(double *event) {
    (void)event;
    CURRENT("cuEventSynchronize");
    wait_until(busy_until_s);
    return OK;
}

EXPORT int cuEventElapsedTime(float *ms, const double *begin, const double *end) {
    CURRENT("cuEventElapsedTime");
    *ms = (float)(1e3 * (*end - *begin));
    return OK;
}

EXPORT int cuEventElapsedTime_v2(float *ms, const double *begin, const double *end) {
    return cuEventElapsedTime(ms, begin, end);
}

EXPORT int cuEventDestroy_v2(double *event) {
    TOLD("cuEventDestroy_v2");
    free(event);
    return OK;
}

/* Where the driver keeps what it compiled from PTX; "" when the cache is off or has no place. */
static void cache_file(char *into, size_t size, const char *image) {
    const char *off = getenv("CUDA_CACHE_DISABLE"), *path = getenv("CUDA_CACHE_PATH"), *home = getenv("HOME");
    unsigned hash = 2166136261u;
    for (const char *each = image; *each; each++)
        hash = (hash ^ (unsigned char)*each) * 16777619u;
    *into = 0;
    if (off && strcmp(off, "1") == 0)
        return;
    if (path && *path) {
        mkdir(path, 0700);
        snprintf(into, size, "%s/fake-%08x", path, hash);
    } else if (home) {
        snprintf(into, size, "%s/.nv", home);
        mkdir(into, 0700);
        snprintf(into, size, "%s/.nv/ComputeCache", home);
        mkdir(into, 0700);
        snprintf(into, size, "%s/.nv/ComputeCache/fake-%08x", home, hash);
    }
}

EXPORT int cuModuleLoadData(void **module, const void *image) {
    char path[512];
    CURRENT("cuModuleLoadData");
    if (!strstr(image, ".version"))
        return INVALID_IMAGE;
    *module = &device_s;
    cache_file(path, sizeof path, image);
    if (*path && access(path, R_OK) == 0)
        return OK;
    wait_for(real("jit_s"));
    FILE *file = *path ? fopen(path, "we") : NULL;
    for (long long left = number("jit_bytes"); file && left > 0; left--)
        fputc(0, file);
    if (file)
        fclose(file);
    return OK;
}

EXPORT int cuModuleLoadDataEx(void **module, const void *image, unsigned count, int *options, void **values) {
    (void)count, (void)options, (void)values;
    return cuModuleLoadData(module, image);
}

EXPORT int cuModuleUnload(void *module) {
    (void)module;
    CURRENT("cuModuleUnload");
    return OK;
}

EXPORT int cuModuleGetFunction(void **function, void *module, const char *name) {
    CURRENT("cuModuleGetFunction");
    *function = module;
    return *name ? OK : NOT_FOUND;
}

/* The kernel is not run. */
EXPORT int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void *stream, void **parameters, void **extra) {
    (void)function, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz;
    (void)shared, (void)stream, (void)parameters, (void)extra;
    CURRENT("cuLaunchKernel");
    labctl_fake_work(5e-6);
    return OK;
}
