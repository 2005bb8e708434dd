"""A wall clock that jumps while a process runs: a small C library that is loaded before libc."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static volatile int64_t *offset;  /* seconds that are added to the wall clock, in a file that the test writes */
static int (*ordinary)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("JUMPING_CLOCK");
    int file = path ? open(path, O_RDONLY) : -1;
    void *found = file < 0 ? MAP_FAILED : mmap(0, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) offset = found;
    ordinary = dlsym(RTLD_NEXT, "clock_gettime");
}
int clock_gettime(clockid_t clock, struct timespec *out) {
    if (!ordinary) ordinary = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = ordinary(clock, out);
    if (!failed && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) out->tv_sec += *offset;
    return failed;
}
int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) { out->tv_sec = now.tv_sec; out->tv_usec = now.tv_nsec / 1000; }
    return 0;
}
time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
"""
JUMPS = (3600, -3600, 86_400, -3 * 86_400, 0, 40 * 86_400)
"""Offsets in seconds, one after another."""


class JumpingClock:
    """The wall clock of processes that are started with `environment`."""

    def __init__(self, place: Path) -> None:
        self._offset = place / "offset"
        self.set(0)
        library, source = place / "clock.so", place / "clock.c"
        source.write_text(SOURCE)
        subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
        self.environment = {**os.environ, "LD_PRELOAD": str(library), "JUMPING_CLOCK": str(self._offset)}

    def set(self, seconds: int) -> None:
        """Set the difference to the true time."""
        with self._offset.open("r+b" if self._offset.exists() else "wb") as file:
            file.write(struct.pack("=q", seconds))
