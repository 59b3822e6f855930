/* A stateful stand-in for libnvidia-ml.so.1, loaded by the unmodified pynvml.
 *
 * FAKE_NVML_STATE   the machine's state file, see state.h; its log is <state>.log
 * FAKE_NVML_ADMIN   1 or 0: this process does (not) hold CAP_SYS_ADMIN, whatever the state says
 *
 * What it models: locks outlive their process while persistence is on and end with the last
 * client when it is off; an idle card shows its idle clock in spite of a lock; power, thermal and
 * reasonless caps; readings that lag; MIG and vGPU that refuse locks; handles that do not survive
 * fork(); errors, one-shot failures and hangs by rule. Symbols are removed with a version script
 * to make an older driver. */
#include "state.h"
#include <signal.h>

enum {
  OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6,
  TOO_SMALL = 7, NO_DRIVER = 9, UNKNOWN = 999, VERSION_MISMATCH = 25,
};
enum { ANY_GPU = 99, MIG_BASE = 64 };
#define TDP 0xffffff01u
#define UNLIMITED 0xffffff02u
#define API __attribute__((visibility("default")))

typedef uint32_t u32;
typedef uint64_t u64;
typedef char *handle_t;

static char tag[MIG_BASE + MAX_GPUS * MAX_MIG]; /* addresses in here serve as opaque handles */
static int references;
static pid_t owner;

static int is_mig(handle_t h) { return h - tag >= MIG_BASE; }

static int gpu_of(handle_t h) {
  long i = h - tag;
  if (i >= MIG_BASE) i = (i - MIG_BASE) / MAX_MIG;
  return S && i >= 0 && i < (long)S->ngpu ? (int)i : -1;
}

static int may_administer(void) {
  const char *own = getenv("FAKE_NVML_ADMIN");
  return own ? *own == '1' : (int)S->admin;
}

/* The first rule that matches may delay the call and force its answer. */
static int enter(const char *fn, int gpu) {
  if (!S) return UNINITIALIZED;
  for (u64 i = 0; i < S->nrule && i < MAX_RULES; i++) {
    rule_t *rule = &S->rule[i];
    if (strcmp(rule->fn, fn) || (rule->gpu != ANY_GPU && (int)rule->gpu != gpu) || !rule->left)
      continue;
    rule->left--;
    if (rule->delay_ms) {
      note(fn, gpu, rule->delay_ms, 0, -1); /* -1: entered, and not back yet */
      struct timespec t = {(time_t)(rule->delay_ms / 1000), (long)(rule->delay_ms % 1000) * 1000000};
      while (nanosleep(&t, &t) && errno == EINTR) { }
    }
    if (rule->ret) return (int)rule->ret;
    break;
  }
  if (strncmp(fn, "nvmlInit", 8) && (!references || owner != getpid())) return UNINITIALIZED;
  return OK;
}

#define SYSTEM_CALL                        \
  int r_ = enter(__func__, -1);            \
  if (r_) return note(__func__, -1, 0, 0, r_)
#define DEVICE_CALL                        \
  int i = gpu_of(h);                       \
  int r_ = enter(__func__, i);             \
  if (r_) return note(__func__, i, 0, 0, r_); \
  if (i < 0) return note(__func__, i, 0, 0, INVALID); \
  gpu_t *g = &S->gpu[i];                   \
  (void)g
#define DONE(ret) return note(__func__, i, 0, 0, ret)
#define GETTER(fn, type, expr)             \
  API int fn(handle_t h, type *out) {      \
    DEVICE_CALL;                           \
    *out = (type)(expr);                   \
    DONE(OK);                              \
  }

/* Life cycle */

/* With persistence off the driver forgets its locks when the last client has gone. */
static void count_client(int joins) {
  int fd = state_lock(), alive = 0, slot = -1;
  for (int k = 0; k < MAX_CLIENTS; k++) {
    pid_t pid = (pid_t)S->client[k];
    if (pid && (pid == getpid() || (kill(pid, 0) && errno == ESRCH))) pid = 0, S->client[k] = 0;
    if (pid) alive++;
    else if (slot < 0) slot = k;
  }
  for (u64 k = 0; !alive && k < S->ngpu; k++) {
    gpu_t *g = &S->gpu[k];
    if (!g->persist) g->lgc_min = g->lgc_max = g->lmc_min = g->lmc_max = 0;
  }
  if (joins && slot >= 0) S->client[slot] = (u64)getpid();
  state_unlock(fd);
}

/* A guardian that was started to observe says so in the log: it must never change anything. */
static void note_observer(void) {
  char line[4096];
  int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  ssize_t n = fd < 0 ? 0 : read(fd, line, sizeof line - 1);
  if (fd >= 0) close(fd);
  const char *word = "\"may_lock\": false";
  if (n > 0 && memmem(line, (size_t)n, word, strlen(word))) note("observer", -1, 0, 0, 0);
}

API int nvmlInitWithFlags(u32 flags) {
  int e = map_state();
  if (e) return e == ENOENT ? NO_DRIVER : e == EACCES ? NO_PERMISSION : UNKNOWN;
  int r = enter("nvmlInitWithFlags", -1);
  if (r) return note("nvmlInitWithFlags", -1, flags, 0, r);
  if (owner != getpid()) owner = getpid(), references = 0;
  if (!references++) count_client(1), note_observer();
  return note("nvmlInitWithFlags", -1, flags, 0, OK);
}
API int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API int nvmlInit(void) { return nvmlInitWithFlags(0); }
API int nvmlShutdown(void) {
  SYSTEM_CALL;
  if (references > 0 && !--references) count_client(0);
  return note("nvmlShutdown", -1, 0, 0, OK);
}
API const char *nvmlErrorString(int r) {
  static char text[40];
  snprintf(text, sizeof text, "fake NVML error %d", r);
  return text;
}

/* System */

static int give(char *out, u32 room, const char *text) {
  if (!out) return INVALID;
  if (strlen(text) + 1 > room) return TOO_SMALL;
  strcpy(out, text);
  return OK;
}
API int nvmlSystemGetDriverVersion(char *o, u32 n) { SYSTEM_CALL; return give(o, n, S->driver); }
API int nvmlSystemGetNVMLVersion(char *o, u32 n) { SYSTEM_CALL; return give(o, n, S->driver); }
API int nvmlSystemGetCudaDriverVersion(int *o) { SYSTEM_CALL; *o = (int)S->cuda_version; return OK; }
API int nvmlSystemGetCudaDriverVersion_v2(int *o) { SYSTEM_CALL; *o = (int)S->cuda_version; return OK; }

/* Finding devices */

API int nvmlDeviceGetCount_v2(u32 *o) { SYSTEM_CALL; *o = (u32)S->ngpu; return note(__func__, -1, *o, 0, OK); }
API int nvmlDeviceGetHandleByIndex_v2(u32 n, handle_t *o) {
  int r = enter(__func__, (int)n);
  if (!r) r = n >= S->ngpu ? INVALID : (int)S->gpu[n].access_ret;
  if (!r) *o = tag + n;
  return note(__func__, (int)n, n, 0, r);
}
static int by_uuid(const char *uuid, handle_t *o, int *gpu) { /* whole strings only, as NVML */
  for (u64 i = 0; uuid && i < S->ngpu; i++) {
    gpu_t *g = &S->gpu[i];
    *gpu = (int)i;
    if (!strcmp(uuid, g->uuid)) { *o = tag + i; return (int)g->access_ret; }
    for (u64 k = 0; g->mig == 1 && k < g->mig_count; k++)
      if (!strcmp(uuid, g->mig_uuid[k])) { *o = tag + MIG_BASE + i * MAX_MIG + k; return OK; }
  }
  *gpu = -1;
  return NOT_FOUND;
}
API int nvmlDeviceGetHandleByUUID(const char *uuid, handle_t *o) {
  SYSTEM_CALL;
  int gpu = -1, r = by_uuid(uuid, o, &gpu);
  return note(__func__, gpu, 0, 0, r);
}
API int nvmlDeviceGetHandleByUUIDV(const char *v, handle_t *o) { /* {version, type, char[41]} */
  SYSTEM_CALL;
  int gpu = -1, r = by_uuid(v + 8, o, &gpu);
  return note(__func__, gpu, 0, 0, r);
}
API int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, handle_t *o) {
  SYSTEM_CALL;
  for (u64 i = 0; i < S->ngpu; i++) {
    size_t all = strlen(S->gpu[i].bus), part = strlen(bus);
    if (part <= all && !strcasecmp(S->gpu[i].bus + all - part, bus)) {
      *o = tag + i;
      return note(__func__, (int)i, 0, 0, (int)S->gpu[i].access_ret);
    }
  }
  return note(__func__, -1, 0, 0, NOT_FOUND);
}
GETTER(nvmlDeviceGetIndex, u32, is_mig(h) ? (h - tag - MIG_BASE) % MAX_MIG : i)
GETTER(nvmlDeviceGetMinorNumber, u32, i)
API int nvmlDeviceGetUUID(handle_t h, char *o, u32 n) {
  DEVICE_CALL;
  DONE(give(o, n, is_mig(h) ? g->mig_uuid[(h - tag - MIG_BASE) % MAX_MIG] : g->uuid));
}
API int nvmlDeviceGetName(handle_t h, char *o, u32 n) { DEVICE_CALL; DONE(give(o, n, g->name)); }
typedef struct { char legacy[16]; u32 domain, bus, device, id, sub; char bus_id[32]; } pci_t;
API int nvmlDeviceGetPciInfo_v3(handle_t h, pci_t *o) {
  DEVICE_CALL;
  if (is_mig(h)) DONE(NOT_SUPPORTED);
  memset(o, 0, sizeof *o);
  snprintf(o->bus_id, sizeof o->bus_id, "%.31s", g->bus);
  sscanf(g->bus, "%x:%x:%x", &o->domain, &o->bus, &o->device);
  DONE(OK);
}
API int nvmlDeviceGetCudaComputeCapability(handle_t h, int *a, int *b) { DEVICE_CALL; *a = 9; *b = 0; DONE(OK); }

/* Modes */

GETTER(nvmlDeviceGetPersistenceMode, u32, g->persist)
GETTER(nvmlDeviceGetComputeMode, u32, 0)
GETTER(nvmlDeviceGetVirtualizationMode, u32, g->virt)
API int nvmlDeviceGetMigMode(handle_t h, u32 *a, u32 *b) {
  DEVICE_CALL;
  if (g->mig > 1) DONE(NOT_SUPPORTED); /* a card without MIG */
  *a = *b = (u32)g->mig;
  DONE(OK);
}
GETTER(nvmlDeviceIsMigDeviceHandle, u32, is_mig(h))
GETTER(nvmlDeviceGetMaxMigDeviceCount, u32, g->mig == 1 ? MAX_MIG : 0)
API int nvmlDeviceGetMigDeviceHandleByIndex(handle_t h, u32 n, handle_t *o) {
  DEVICE_CALL;
  if (g->mig != 1 || n >= g->mig_count) DONE(NOT_FOUND);
  *o = tag + MIG_BASE + i * MAX_MIG + (int)n;
  DONE(OK);
}
API int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle_t h, handle_t *o) {
  DEVICE_CALL;
  if (!is_mig(h)) DONE(INVALID);
  *o = tag + i;
  DONE(OK);
}

/* Clocks: under load a card runs at its lock, below power, thermal or hidden caps */

static u32 snap(const gpu_t *g, u64 mhz) {
  if (mhz >= g->boost_mhz) return (u32)g->boost_mhz;
  if (mhz <= g->low_mhz) return (u32)g->low_mhz;
  return (u32)(g->low_mhz + (mhz - g->low_mhz) / g->step_mhz * g->step_mhz);
}
static int loaded(const gpu_t *g) {
  u64 t = now_ns();
  return g->busy || (g->busy_until && t >= g->busy_from && t < g->busy_until);
}
static u32 wanted(const gpu_t *g) { return g->lgc_max ? snap(g, g->lgc_max) : (u32)g->boost_mhz; }
static u32 lower(u32 mhz, u64 cap) { return cap && cap < mhz ? (u32)cap : mhz; }
static u32 real_mhz(const gpu_t *g) {
  if (!loaded(g)) return (u32)g->idle_mhz;
  return lower(lower(lower(wanted(g), g->pcap_mhz), g->tcap_mhz), g->hidden_mhz);
}
static u32 shown_mhz(gpu_t *g) {
  u32 target = real_mhz(g);
  u64 t = now_ns();
  if (target != g->target_mhz) {
    g->shown_mhz = g->target_mhz ? g->target_mhz : target;
    g->target_mhz = target;
    g->lag_left = g->lag_reads;
    g->lag_from = t;
  }
  if (g->lag_left) { g->lag_left--; return (u32)g->shown_mhz; }
  if (g->lag_ms && t - g->lag_from < g->lag_ms * 1000000) return (u32)g->shown_mhz;
  return target;
}
static u64 reasons(gpu_t *g) {
  u64 bits = g->extra_reasons;
  if (g->flash_left) g->flash_left--, bits |= g->flash_reasons;
  if (!loaded(g)) return bits | 1;
  if (g->pcap_mhz && g->pcap_mhz < wanted(g)) bits |= 0x4;
  if (g->tcap_mhz && g->tcap_mhz < wanted(g)) bits |= 0x20;
  return bits;
}
static u32 clock_of(gpu_t *g, u32 type) {
  if (type == 2) return (u32)(g->lmc_max ? g->lmc_max : g->mem0_mhz);
  return type == 3 ? 1500 : shown_mhz(g);
}
API int nvmlDeviceGetClockInfo(handle_t h, u32 type, u32 *o) {
  DEVICE_CALL;
  if (type > 3) DONE(INVALID);
  if (is_mig(h)) DONE(NOT_SUPPORTED);
  *o = clock_of(g, type);
  return note(__func__, i, type, *o, OK);
}
API int nvmlDeviceGetMaxClockInfo(handle_t h, u32 type, u32 *o) {
  DEVICE_CALL;
  if (type > 3) DONE(INVALID);
  *o = (u32)(type == 2 ? g->mem0_mhz : g->boost_mhz + 120); /* theoretical, never reached */
  DONE(OK);
}
API int nvmlDeviceGetClock(handle_t h, u32 type, u32 id, u32 *o) {
  DEVICE_CALL;
  if (type > 3) DONE(INVALID);
  if (id == 2 && type != 2) { *o = (u32)g->app_mhz; DONE(g->app_mhz ? OK : NOT_SUPPORTED); }
  if (id) DONE(NOT_SUPPORTED);
  *o = clock_of(g, type);
  DONE(OK);
}
API int nvmlDeviceGetSupportedMemoryClocks(handle_t h, u32 *n, u32 *o) {
  DEVICE_CALL;
  if (!g->nmem) DONE(NOT_SUPPORTED);
  u32 room = *n;
  *n = (u32)g->nmem;
  if (room < g->nmem || !o) DONE(TOO_SMALL);
  o[0] = (u32)g->mem0_mhz;
  if (g->nmem > 1) o[1] = (u32)g->mem1_mhz;
  DONE(OK);
}
API int nvmlDeviceGetSupportedGraphicsClocks(handle_t h, u32 mem, u32 *n, u32 *o) {
  DEVICE_CALL;
  if (!g->nmem) DONE(NOT_SUPPORTED);
  if (mem != g->mem0_mhz && mem != g->mem1_mhz) DONE(NOT_FOUND);
  u32 need = (u32)((g->boost_mhz - g->low_mhz) / g->step_mhz + 1), room = *n;
  *n = need;
  if (room < need || !o) DONE(TOO_SMALL);
  for (u32 k = 0; k < need; k++) o[k] = (u32)(g->boost_mhz - k * g->step_mhz);
  DONE(OK);
}

enum { SM_CLOCK, MEMORY_CLOCK };
static int change(handle_t h, const char *fn, u32 lo, u32 hi, int domain, int resets) {
  int i = gpu_of(h), r = enter(fn, i);
  if (r) return note(fn, i, lo, hi, r);
  if (i < 0) return note(fn, i, lo, hi, INVALID);
  gpu_t *g = &S->gpu[i];
  int supported = (int)(domain == MEMORY_CLOCK ? g->can_lmc : g->can_lgc);
  if (!supported || is_mig(h) || g->mig == 1 || g->virt == 2) return note(fn, i, lo, hi, NOT_SUPPORTED);
  if (!may_administer()) return note(fn, i, lo, hi, NO_PERMISSION);
  u32 low = lo, high = hi;
  if (!resets && domain == SM_CLOCK && lo > 0xffffff00u) {
    if (hi <= 0xffffff00u || !g->can_symbolic) return note(fn, i, lo, hi, INVALID);
    low = lo == TDP ? (u32)g->base_mhz : (u32)g->low_mhz;
    high = hi == TDP ? (u32)g->base_mhz : (u32)g->boost_mhz;
  }
  if (!resets && (!high || low > high)) return note(fn, i, lo, hi, INVALID);
  int fd = state_lock();
  shown_mhz(g); /* so that a reading after this one lags behind the former clock */
  if (domain == MEMORY_CLOCK) g->lmc_min = low, g->lmc_max = high;
  else g->lgc_min = low, g->lgc_max = high;
  note(fn, i, lo, hi, OK); /* inside the lock: the log has the order in which it happened */
  state_unlock(fd);
  return OK;
}
API int nvmlDeviceSetGpuLockedClocks(handle_t h, u32 a, u32 b) { return change(h, __func__, a, b, SM_CLOCK, 0); }
API int nvmlDeviceResetGpuLockedClocks(handle_t h) { return change(h, __func__, 0, 0, SM_CLOCK, 1); }
API int nvmlDeviceSetMemoryLockedClocks(handle_t h, u32 a, u32 b) { return change(h, __func__, a, b, MEMORY_CLOCK, 0); }
API int nvmlDeviceResetMemoryLockedClocks(handle_t h) { return change(h, __func__, 0, 0, MEMORY_CLOCK, 1); }

/* Power and temperature */

API int nvmlDeviceSetPersistenceMode(handle_t h, u32 mode) {
  DEVICE_CALL;
  if (!may_administer()) DONE(NO_PERMISSION);
  g->persist = mode;
  DONE(OK);
}
API int nvmlDeviceSetPowerManagementLimit(handle_t h, u32 mw) {
  DEVICE_CALL;
  if (!may_administer()) DONE(NO_PERMISSION);
  g->limit_mw = mw;
  DONE(OK);
}
GETTER(nvmlDeviceGetPowerManagementLimit, u32, g->limit_mw)
GETTER(nvmlDeviceGetEnforcedPowerLimit, u32, g->limit_mw)
GETTER(nvmlDeviceGetPowerUsage, u32, g->power_mw)
API int nvmlDeviceGetTemperature(handle_t h, u32 sensor, u32 *o) { DEVICE_CALL; *o = (u32)g->temp; DONE(sensor ? INVALID : OK); }
API int nvmlDeviceGetTemperatureV(handle_t h, u32 *o) { /* {version, sensor, degrees} */
  DEVICE_CALL;
  if (o[0] != 0x100000C) DONE(VERSION_MISMATCH);
  o[2] = (u32)g->temp;
  DONE(OK);
}
GETTER(nvmlDeviceGetPerformanceState, u32, loaded(g) ? 0 : 8)

/* Throttling */

GETTER(nvmlDeviceGetCurrentClocksEventReasons, u64, reasons(g))
GETTER(nvmlDeviceGetCurrentClocksThrottleReasons, u64, reasons(g))
GETTER(nvmlDeviceGetSupportedClocksEventReasons, u64, 0x1ff)
GETTER(nvmlDeviceGetSupportedClocksThrottleReasons, u64, 0x1ff)
typedef struct { u32 id, scope; int64_t timestamp, latency; u32 type; int ret; u64 value; } field_t;
API int nvmlDeviceGetFieldValues(handle_t h, int n, field_t *f) {
  DEVICE_CALL;
  for (int k = 0; k < n; k++) {
    u64 capped = g->pcap_mhz && g->pcap_since ? now_ns() - g->pcap_since : 0;
    f[k].type = 3;
    f[k].ret = OK;
    switch (f[k].id) {
      case 74: f[k].value = g->pcap_ns + capped; break;
      case 76: f[k].value = g->sync_ns; break;
      case 269: f[k].value = g->tcap_ns; break;
      case 270: f[k].value = g->hwtherm_ns; break;
      case 271: f[k].value = g->brake_ns; break;
      default: f[k].value = 0, f[k].ret = NOT_SUPPORTED;
    }
  }
  DONE(OK);
}

/* Load */

typedef struct { u32 gpu, mem; } utilization_t;
API int nvmlDeviceGetUtilizationRates(handle_t h, utilization_t *o) {
  DEVICE_CALL;
  if (is_mig(h)) DONE(NOT_SUPPORTED);
  o->gpu = g->util ? (u32)g->util : loaded(g) ? 100 : 0;
  o->mem = 0;
  DONE(OK);
}
enum { TOTAL_MB = 81920, RESERVED_MB = 600 };
static u64 used_bytes(const gpu_t *g) {
  u64 used = g->mem_used;
  for (u64 k = 0; k < g->nproc && k < MAX_PROCS; k++) used += g->proc[k].mem;
  return used;
}
typedef struct { u64 total, free, used; } memory_t;
API int nvmlDeviceGetMemoryInfo(handle_t h, memory_t *o) {
  DEVICE_CALL;
  o->total = (u64)TOTAL_MB << 20;
  o->used = used_bytes(g) + ((u64)RESERVED_MB << 20);
  o->free = o->total - o->used;
  DONE(OK);
}
typedef struct { u32 version; u64 total, reserved, free, used; } memory2_t;
API int nvmlDeviceGetMemoryInfo_v2(handle_t h, memory2_t *o) {
  DEVICE_CALL;
  if (o->version != 0x02000028) DONE(VERSION_MISMATCH);
  o->total = (u64)TOTAL_MB << 20;
  o->reserved = (u64)RESERVED_MB << 20;
  o->used = used_bytes(g);
  o->free = o->total - o->used - o->reserved;
  DONE(OK);
}
typedef struct { u32 pid; u64 mem; u32 gi, ci; } process_t;
static int processes(handle_t h, const char *fn, u32 *n, process_t *o, u64 kind) {
  int i = gpu_of(h), r = enter(fn, i);
  if (r) return note(fn, i, 0, 0, r);
  if (i < 0 || !n) return note(fn, i, 0, 0, INVALID);
  gpu_t *g = &S->gpu[i];
  u32 room = *n, count = 0;
  for (u64 k = 0; k < g->nproc && k < MAX_PROCS; k++) {
    if (g->proc[k].kind != kind) continue;
    if (o && count < room)
      o[count] = (process_t){(u32)g->proc[k].pid, g->proc[k].mem, ~0u, ~0u};
    count++;
  }
  *n = count;
  return note(fn, i, count, 0, count && (!o || room < count) ? TOO_SMALL : OK);
}
API int nvmlDeviceGetComputeRunningProcesses_v3(handle_t h, u32 *n, process_t *o) { return processes(h, __func__, n, o, 0); }
API int nvmlDeviceGetGraphicsRunningProcesses_v3(handle_t h, u32 *n, process_t *o) { return processes(h, __func__, n, o, 1); }
API int nvmlDeviceGetMPSComputeRunningProcesses_v3(handle_t h, u32 *n, process_t *o) { return processes(h, __func__, n, o, 2); }

/* For the tests themselves */

API u64 fake_sizeof_state(void) { return sizeof(state_t); }
API int fake_mark(const char *text, int gpu) { return map_state() ? 1 : note(text, gpu, 0, 0, 0); }
