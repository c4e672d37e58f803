/* libnvidia-ml.so.1: what pynvml and nvidia-smi's readers ask. Structures as in nvml.h. */
#include "fake.h"

enum {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NO_PERMISSION = 4,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    VERSION_MISMATCH = 18
};

typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} pci_info;

typedef struct {
    unsigned long long total, free, used;
} memory_info;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} memory_info_v2;

typedef struct {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
} process_info;

typedef struct {
    unsigned version;
    int sensor, celsius;
} temperature;

typedef struct {
    unsigned gpu, memory;
} rates;

static int clients;
static char handles[64];

static int of(const void *device) { return (int)((const char *)device - handles); }

static int known(const void *device) {
    if (!clients)
        return UNINITIALIZED;
    return of(device) >= 0 && of(device) < (int)number("gpu_count") ? OK : INVALID_ARGUMENT;
}

static int copy(const char *key, char *into, unsigned size) {
    char value[512] = "";
    lookup(key, value, sizeof value);
    if (strlen(value) + 1 > size)
        return INSUFFICIENT_SIZE;
    strcpy(into, value);
    return OK;
}

static int node_status(const char *name) {
    int error = node_errno(name);
    return error == 0 ? OK : error == EACCES || error == EPERM ? NO_PERMISSION : DRIVER_NOT_LOADED;
}

EXPORT int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    char library[64] = "", module[64] = "";
    int status = told("nvmlInitWithFlags");
    if (status)
        return status;
    lookup("driver_version", library, sizeof library);
    lookup("module_version", module, sizeof module);
    if (!*module)
        return DRIVER_NOT_LOADED;
    if (strcmp(library, module) != 0)
        return VERSION_MISMATCH;
    status = node_status("nvidiactl");
    if (status)
        return status;
    wake();
    clients++;
    return OK;
}

EXPORT int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
EXPORT int nvmlInit(void) { return nvmlInitWithFlags(0); }

EXPORT int nvmlShutdown(void) {
    if (!clients)
        return UNINITIALIZED;
    clients--;
    return OK;
}

EXPORT const char *nvmlErrorString(int status) {
    switch (status) {
    case OK: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NO_PERMISSION: return "Insufficient Permissions";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case VERSION_MISMATCH: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

EXPORT int nvmlSystemGetDriverVersion(char *into, unsigned size) {
    return clients ? copy("driver_version", into, size) : UNINITIALIZED;
}

EXPORT int nvmlSystemGetNVMLVersion(char *into, unsigned size) {
    char driver[64] = "";
    lookup("driver_version", driver, sizeof driver);
    int length = snprintf(into, size, "%lld.%s", number("cuda_version") / 1000, driver);
    return length < (int)size ? OK : INSUFFICIENT_SIZE;
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = (int)number("cuda_version");
    return OK;
}

EXPORT int nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

EXPORT int nvmlSystemGetProcessName(unsigned pid, char *into, unsigned size) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/exe", pid);
    ssize_t length = readlink(path, into, size - 1);
    if (length < 0)
        return 6;
    into[length] = 0;
    return OK;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *count) {
    if (!clients)
        return UNINITIALIZED;
    *count = (unsigned)number("gpu_count");
    return OK;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    char name[32];
    if (!clients)
        return UNINITIALIZED;
    if (index >= (unsigned)number("gpu_count"))
        return INVALID_ARGUMENT;
    snprintf(name, sizeof name, "nvidia%u", index);
    *device = handles + index;
    return node_status(name);
}

/* By `domain:bus:device.function`, hex, capitals or not, as CUDA writes it. */
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *address, void **device) {
    unsigned wanted[4], here[4];
    char key[64], own[32];
    if (sscanf(address, "%x:%x:%x.%x", wanted, wanted + 1, wanted + 2, wanted + 3) != 4)
        return INVALID_ARGUMENT;
    for (unsigned index = 0; index < (unsigned)number("gpu_count"); index++) {
        snprintf(key, sizeof key, "gpu%u_pci", index);
        if (lookup(key, own, sizeof own) && sscanf(own, "%x:%x:%x.%x", here, here + 1, here + 2, here + 3) == 4 &&
            memcmp(wanted, here, sizeof here) == 0)
            return nvmlDeviceGetHandleByIndex_v2(index, device);
    }
    return INVALID_ARGUMENT;
}

EXPORT int nvmlDeviceGetIndex(void *device, unsigned *index) {
    *index = (unsigned)of(device);
    return known(device);
}

static int text(void *device, const char *name, char *into, unsigned size) {
    char key[64];
    int status = known(device);
    snprintf(key, sizeof key, "gpu%d_%s", of(device), name);
    return status ? status : copy(key, into, size);
}

static int figure(void *device, const char *name, unsigned *into) {
    int status = known(device);
    if (!status)
        *into = (unsigned)of_gpu(of(device), name);
    return status;
}

EXPORT int nvmlDeviceGetName(void *device, char *into, unsigned size) { return text(device, "name", into, size); }
EXPORT int nvmlDeviceGetUUID(void *device, char *into, unsigned size) { return text(device, "uuid", into, size); }

EXPORT int nvmlDeviceGetPciInfo_v3(void *device, pci_info *info) {
    char address[32] = "";
    int status = text(device, "pci", address, sizeof address);
    if (status)
        return status;
    memset(info, 0, sizeof *info);
    sscanf(address, "%x:%x:%x", &info->domain, &info->bus, &info->device);
    snprintf(info->bus_id_legacy, sizeof info->bus_id_legacy, "%04X:%02X:%02X.0", info->domain & 0xffffu,
             info->bus & 0xffu, info->device & 0xffu);
    snprintf(info->bus_id, sizeof info->bus_id, "%08X:%02X:%02X.0", info->domain, info->bus & 0xffu,
             info->device & 0xffu);
    info->device_id = (unsigned)of_gpu(of(device), "pci_device_id");
    return OK;
}

EXPORT int nvmlDeviceGetPciInfo_v2(void *device, pci_info *info) { return nvmlDeviceGetPciInfo_v3(device, info); }

EXPORT int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    *major = (int)of_gpu(of(device), "major");
    *minor = (int)of_gpu(of(device), "minor");
    return known(device);
}

EXPORT int nvmlDeviceGetMemoryInfo(void *device, memory_info *info) {
    info->total = (unsigned long long)of_gpu(of(device), "memory_bytes");
    info->used = (unsigned long long)of_gpu(of(device), "used_bytes");
    info->free = info->total - info->used;
    return known(device);
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(void *device, memory_info_v2 *info) {
    memory_info all;
    int status = nvmlDeviceGetMemoryInfo(device, &all);
    info->total = all.total;
    info->used = all.used;
    info->free = all.free;
    info->reserved = 0;
    return status;
}

EXPORT int nvmlDeviceGetPersistenceMode(void *device, int *mode) {
    return figure(device, "persistence", (unsigned *)mode);
}

/* Clock types: 0 graphics, 1 SM, 2 memory, 3 video. */
EXPORT int nvmlDeviceGetClockInfo(void *device, int type, unsigned *clock) {
    return figure(device, type == 2 ? "memory_clock_mhz" : "sm_clock_mhz", clock);
}

EXPORT int nvmlDeviceGetMaxClockInfo(void *device, int type, unsigned *clock) {
    return figure(device, type == 2 ? "memory_clock_max_mhz" : "sm_clock_max_mhz", clock);
}

EXPORT int nvmlDeviceGetPowerUsage(void *device, unsigned *mw) { return figure(device, "power_mw", mw); }
EXPORT int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *mw) { return figure(device, "power_limit_mw", mw); }
EXPORT int nvmlDeviceGetPowerManagementLimit(void *device, unsigned *mw) {
    return figure(device, "power_limit_mw", mw);
}

EXPORT int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
    return sensor ? INVALID_ARGUMENT : figure(device, "temperature_c", celsius);
}

EXPORT int nvmlDeviceGetTemperatureV(void *device, temperature *wanted) {
    return figure(device, "temperature_c", (unsigned *)&wanted->celsius);
}

EXPORT int nvmlDeviceGetUtilizationRates(void *device, rates *found) {
    found->memory = 0;
    return figure(device, "utilisation_percent", &found->gpu);
}

EXPORT int nvmlDeviceGetPerformanceState(void *device, int *state) {
    *state = of_gpu(of(device), "utilisation_percent") ? 0 : 8;
    return known(device);
}

EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons) {
    *reasons = (unsigned long long)of_gpu(of(device), "reasons");
    return known(device);
}

EXPORT int nvmlDeviceGetSupportedClocksThrottleReasons(void *device, unsigned long long *reasons) {
    *reasons = 0x1ff;
    return known(device);
}

/* The newer name came with branch 535. */
static int has_event_reasons(void) {
    char driver[64] = "";
    lookup("driver_version", driver, sizeof driver);
    return atoi(driver) >= 535;
}

EXPORT int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *reasons) {
    return has_event_reasons() ? nvmlDeviceGetCurrentClocksThrottleReasons(device, reasons) : 13;
}

EXPORT int nvmlDeviceGetSupportedClocksEventReasons(void *device, unsigned long long *reasons) {
    return has_event_reasons() ? nvmlDeviceGetSupportedClocksThrottleReasons(device, reasons) : 13;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, process_info *into) {
    int status = known(device);
    if (status)
        return status;
    unsigned room = *count, there = (unsigned)of_gpu(of(device), "processes");
    *count = there;
    if (there > room || (there && !into))
        return INSUFFICIENT_SIZE;
    for (unsigned each = 0; each < there; each++) {
        char key[64];
        snprintf(key, sizeof key, "process%u_pid", each);
        into[each].pid = (unsigned)of_gpu(of(device), key);
        snprintf(key, sizeof key, "process%u_bytes", each);
        into[each].bytes = (unsigned long long)of_gpu(of(device), key);
        into[each].gpu_instance = into[each].compute_instance = 0xffffffffu;
    }
    return OK;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(void *device, unsigned *count, process_info *into) {
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, into);
}

EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, process_info *into) {
    (void)into;
    *count = 0;
    return known(device);
}
