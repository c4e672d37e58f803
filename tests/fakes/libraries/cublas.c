/* libcublas.so.12: handles, and products that are really computed. Time is the scenario's, on the fake device. */
#include "fake.h"

#include <dlfcn.h>

enum { OK = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7 };

#define TOLD(function)                \
    do {                              \
        int status = told(function);  \
        if (status)                   \
            return status;            \
    } while (0)

static int products;

__attribute__((constructor)) static void opened(void) { wait_for(real("libraries_s")); }

/* A function of the fake driver library, if the process has it. */
static void *of_driver(const char *name) {
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    return driver ? dlsym(driver, name) : NULL;
}

EXPORT int cublasCreate_v2(void **handle) {
    TOLD("cublasCreate_v2");
    int (*has_context)(void) = NULL;
    *(void **)&has_context = of_driver("labctl_fake_has_context");
    if (!has_context || !has_context())
        return NOT_INITIALIZED;
    wait_for(real("handle_s"));
    *handle = &products;
    return OK;
}

EXPORT int cublasDestroy_v2(void *handle) {
    TOLD("cublasDestroy_v2");
    return handle ? OK : NOT_INITIALIZED;
}

EXPORT int cublasGetVersion_v2(void *handle, int *version) {
    (void)handle;
    TOLD("cublasGetVersion_v2");
    *version = 120901;
    return OK;
}

/* Types: 0 major, 1 minor, 2 patch. */
EXPORT int cublasGetProperty(int type, int *value) {
    static const int version[] = {12, 9, 1};
    if (type < 0 || type > 2)
        return INVALID_VALUE;
    *value = version[type];
    return OK;
}

EXPORT const char *cublasGetStatusString(int status) {
    switch (status) {
    case 0: return "CUBLAS_STATUS_SUCCESS";
    case 1: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case 3: return "CUBLAS_STATUS_ALLOC_FAILED";
    case 7: return "CUBLAS_STATUS_INVALID_VALUE";
    case 8: return "CUBLAS_STATUS_ARCH_MISMATCH";
    case 11: return "CUBLAS_STATUS_MAPPING_ERROR";
    case 13: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case 14: return "CUBLAS_STATUS_INTERNAL_ERROR";
    case 15: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "unknown status";
    }
}

EXPORT const char *cublasGetStatusName(int status) { return cublasGetStatusString(status); }

EXPORT int cublasSetMathMode(void *handle, int mode) {
    (void)mode;
    TOLD("cublasSetMathMode");
    return handle ? OK : NOT_INITIALIZED;
}

EXPORT int cublasSetStream_v2(void *handle, void *stream) {
    (void)stream;
    TOLD("cublasSetStream_v2");
    return handle ? OK : NOT_INITIALIZED;
}

EXPORT int cublasSetPointerMode_v2(void *handle, int mode) { return !handle ? NOT_INITIALIZED : mode ? INVALID_VALUE : OK; }

/* C = alpha A B + beta C, column by column; no transposes, alpha and beta on the host. */
EXPORT int cublasSgemm_v2(void *handle, int transa, int transb, int m, int n, int k, const float *alpha,
                          const float *a, int lda, const float *b, int ldb, const float *beta, float *c, int ldc) {
    TOLD("cublasSgemm_v2");
    if (!handle)
        return NOT_INITIALIZED;
    if (transa || transb || m < 0 || n < 0 || k < 0 || lda < m || ldb < k || ldc < m)
        return INVALID_VALUE;
    for (int column = 0; column < n; column++) {
        float *into = c + (size_t)column * (size_t)ldc;
        for (int row = 0; row < m; row++)
            into[row] = *beta == 0 ? 0 : *beta * into[row];
        for (int inner = 0; inner < k; inner++) {
            const float *from = a + (size_t)inner * (size_t)lda;
            float factor = *alpha * b[(size_t)column * (size_t)ldb + (size_t)inner];
            for (int row = 0; row < m; row++)
                into[row] += factor * from[row];
        }
    }
    if (m && n && number("wrong_product"))
        c[0] += 1;
    void (*work)(double) = NULL;
    *(void **)&work = of_driver("labctl_fake_work");
    if (work)
        work(real(products++ ? "product_s" : "first_product_s"));
    return OK;
}
