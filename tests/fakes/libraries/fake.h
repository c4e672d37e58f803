/* What the fake libraries share: the scenario's lines, the device nodes, waking, and waiting. */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define LOCAL static __attribute__((unused))

/* A path below the fakes' own directory, or on a machine below the place that stands for it. */
LOCAL const char *place(char *into, size_t size, const char *below, const char *on_machine, const char *name) {
    const char *root = getenv("LABCTL_FAKES_DIR");
    if (root && *root)
        snprintf(into, size, "%s/%s/%s", root, below, name);
    else
        snprintf(into, size, "%s/%s", on_machine, name);
    return into;
}

/* Copy the value of a key of scenario.env; 0 when there is none. Read anew each time: tests change the file. */
LOCAL int lookup(const char *key, char *into, size_t size) {
    char path[512], line[512];
    const char *root = getenv("LABCTL_FAKES_DIR");
    snprintf(path, sizeof path, "%s/scenario.env", root && *root ? root : "/etc/labctl-fakes");
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    size_t length = strlen(key);
    int found = 0;
    while (!found && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, length) == 0 && line[length] == '=') {
            line[strcspn(line, "\n")] = 0;
            snprintf(into, size, "%s", line + length + 1);
            found = 1;
        }
    }
    fclose(file);
    return found;
}

LOCAL long long number(const char *key) {
    char value[512];
    return lookup(key, value, sizeof value) ? atoll(value) : 0;
}

LOCAL double real(const char *key) {
    char value[512];
    return lookup(key, value, sizeof value) ? atof(value) : 0.0;
}

LOCAL long long of_gpu(int index, const char *name) {
    char key[128];
    snprintf(key, sizeof key, "gpu%d_%s", index, name);
    return number(key);
}

LOCAL double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

LOCAL void wait_until(double end_s) {
    for (double left = end_s - now_s(); left > 0; left = end_s - now_s()) {
        struct timespec span = {(time_t)left, (long)((left - (double)(time_t)left) * 1e9)};
        nanosleep(&span, NULL);
    }
}

LOCAL void wait_for(double span_s) {
    if (span_s > 0)
        wait_until(now_s() + span_s);
}

/* What a function is told to return by the scenario; it may also be told to hang. */
LOCAL int told(const char *function) {
    char key[128];
    snprintf(key, sizeof key, "hang_%s", function);
    while (number(key))
        wait_for(3600);
    snprintf(key, sizeof key, "error_%s", function);
    return (int)number(key);
}

/* Open a device node as the real libraries do; 0 or errno. */
LOCAL int node_errno(const char *name) {
    char path[512];
    int fd = open(place(path, sizeof path, "dev", "/dev", name), O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return errno;
    close(fd);
    return 0;
}

/* Wake the devices as the first client of a driver without persistence mode does. */
LOCAL void wake(void) {
    int asleep = 0, count = (int)number("gpu_count");
    for (int index = 0; index < count; index++)
        asleep |= !of_gpu(index, "persistence");
    if (!asleep)
        return;
    char path[512];
    struct stat state;
    place(path, sizeof path, "state", "/run/labctl-fakes", "awake");
    double age_s = 1e9;
    if (stat(path, &state) == 0) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        age_s = (double)(now.tv_sec - state.st_mtim.tv_sec) + 1e-9 * (double)(now.tv_nsec - state.st_mtim.tv_nsec);
    }
    if (age_s > real("linger_s"))
        wait_for(real("wake_s"));
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd >= 0) {
        fchmod(fd, 0666);
        futimens(fd, NULL);
        close(fd);
    }
}
