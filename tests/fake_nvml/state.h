/* The state of the fake machine: one file, mapped by every process that uses it, so a change is
 * seen at once everywhere and outlives a SIGKILL of its maker, as the driver's own state does.
 *
 * machine.py reads the X(...) lists below, so the layout is written down once. Every number is
 * a 64-bit word; times are CLOCK_MONOTONIC nanoseconds. */
#ifndef CIQ_FAKE_STATE_H
#define CIQ_FAKE_STATE_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define FAKE_MAGIC 0xC1C0DE03u
enum { MAX_GPUS = 8, MAX_MIG = 4, MAX_PROCS = 16, MAX_RULES = 32, MAX_CLIENTS = 128, TEXT = 96 };

#define GPU_NUMBERS(X) \
  X(access_ret)  /* what a handle request answers: 4 = no access, 15 = lost */ \
  X(persist) X(mig) X(virt) X(speed) \
  X(mig_count) \
  X(can_lgc) X(can_lmc) X(can_symbolic)  /* 0: NOT_SUPPORTED, or INVALID for symbolic limits */ \
  X(idle_mhz) X(boost_mhz) X(base_mhz) X(low_mhz) X(step_mhz) X(app_mhz) \
  X(nmem) X(mem0_mhz) X(mem1_mhz) \
  X(lgc_min) X(lgc_max) X(lmc_min) X(lmc_max)  /* the locks; 0 = none */ \
  X(busy) X(busy_from) X(busy_until)  /* under load: always, or between two times */ \
  X(pcap_mhz) X(pcap_since) X(pcap_ns)  /* power cap: clock, start, nanoseconds before that */ \
  X(tcap_mhz) X(tcap_ns) \
  X(hidden_mhz)  /* a cap that sets no reason bit */ \
  X(hwtherm_ns) X(brake_ns) X(sync_ns) \
  X(extra_reasons) X(flash_reasons) X(flash_left)  /* steady bits; bits of the next n reads */ \
  X(lag_reads) X(lag_ms) X(lag_left) X(lag_from) X(shown_mhz) X(target_mhz) \
  X(temp) X(power_mw) X(limit_mw) X(util) X(mem_used) \
  X(nproc)

#define PROC_NUMBERS(X) X(pid) X(kind) X(mem)  /* kind: 0 compute, 1 graphics, 2 MPS */

#define RULE_NUMBERS(X) X(gpu) X(ret) X(left) X(delay_ms)  /* gpu 99: any; left: times */

#define MACHINE_NUMBERS(X) X(magic) X(ngpu) X(admin) X(nrule) X(cuda_version)

#define FIELD(name) uint64_t name;
typedef struct { PROC_NUMBERS(FIELD) } proc_t;
typedef struct { char fn[TEXT]; RULE_NUMBERS(FIELD) } rule_t;
typedef struct {
  char uuid[TEXT], name[TEXT], bus[TEXT], mig_uuid[MAX_MIG][TEXT];
  GPU_NUMBERS(FIELD)
  proc_t proc[MAX_PROCS];
} gpu_t;
typedef struct {
  MACHINE_NUMBERS(FIELD)
  char driver[TEXT];
  uint64_t client[MAX_CLIENTS];
  rule_t rule[MAX_RULES];
  gpu_t gpu[MAX_GPUS];
} state_t;

static state_t *S;
static int log_fd = -1;
static char state_path[4000];

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Maps $FAKE_NVML_STATE. Returns 0, ENOENT (no such machine), EACCES, or EINVAL (not ours). */
static int map_state(void) {
  if (S) return 0;
  const char *path = getenv("FAKE_NVML_STATE");
  if (!path) return ENOENT;
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return errno == EACCES ? EACCES : ENOENT;
  state_t *m = mmap(0, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (m == MAP_FAILED || m->magic != FAKE_MAGIC) return EINVAL;
  snprintf(state_path, sizeof state_path, "%s", path);
  char log_path[4096];
  snprintf(log_path, sizeof log_path, "%s.log", path);
  log_fd = open(log_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  S = m;
  return 0;
}

/* One line per call: time pid function gpu a b result. One write(2) each, so lines never mix. */
static int note(const char *fn, int gpu, uint64_t a, uint64_t b, int ret) {
  char line[256];
  int n = snprintf(line, sizeof line, "%llu %d %s %d %llu %llu %d\n",
                   (unsigned long long)now_ns(), getpid(), fn, gpu, (unsigned long long)a,
                   (unsigned long long)b, ret);
  if (log_fd >= 0 && write(log_fd, line, (size_t)n) != n) { /* a full disk is the test's matter */ }
  return ret;
}

static int state_lock(void) {
  int fd = open(state_path, O_RDWR | O_CLOEXEC);
  while (fd >= 0 && flock(fd, LOCK_EX) && errno == EINTR) { }
  return fd;
}

static void state_unlock(int fd) { if (fd >= 0) close(fd); }

#endif
