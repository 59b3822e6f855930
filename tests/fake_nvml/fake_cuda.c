/* A stand-in for libcuda.so.1: enough of the driver API to ask which devices a process sees, in
 * which order, and to show up in NVML's process list. It reads the same state as fake_nvml.c, and
 * CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER at cuInit, once, as the real one does. At its end: a
 * context that kernels can hang and kill. */
#include "state.h"

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101 };
#define API __attribute__((visibility("default")))

static int ready, count;
static int device_gpu[MAX_GPUS];
static const char *device_uuid[MAX_GPUS];

/* Without CUDA_DEVICE_ORDER=PCI_BUS_ID the fastest card is device 0, whatever its slot. */
static int order_of(int *order) {
  const char *by = getenv("CUDA_DEVICE_ORDER");
  int n = 0, pci = by && !strcmp(by, "PCI_BUS_ID");
  for (int i = 0; i < (int)S->ngpu; i++)
    if (!S->gpu[i].access_ret) order[n++] = i; /* CUDA does not count what it may not open */
  for (int i = 1; !pci && i < n; i++)
    for (int k = i; k > 0 && S->gpu[order[k]].speed > S->gpu[order[k - 1]].speed; k--) {
      int swap = order[k];
      order[k] = order[k - 1], order[k - 1] = swap;
    }
  return n;
}

static int add(int gpu, const char *uuid) {
  for (int k = 0; k < count; k++)
    if (!strcmp(device_uuid[k], uuid)) return 0; /* named twice: CUDA shows nothing at all */
  device_gpu[count] = gpu, device_uuid[count] = uuid;
  return ++count < MAX_GPUS;
}

static int add_named(const char *word, const int *order, int shown) {
  char *end;
  size_t length = strlen(word);
  long n = strtol(word, &end, 10);
  if (length && !*end) {
    if (n < 0 || n >= shown) return 0;
    gpu_t *g = &S->gpu[order[n]];
    return add(order[n], g->mig == 1 ? g->mig_uuid[0] : g->uuid);
  }
  for (int i = 0; length > 4 && i < (int)S->ngpu; i++) {
    gpu_t *g = &S->gpu[i];
    if (!strncmp(word, g->uuid, length)) return add(i, g->uuid);
    for (int k = 0; g->mig == 1 && k < (int)g->mig_count; k++)
      if (!strncmp(word, g->mig_uuid[k], length)) return add(i, g->mig_uuid[k]);
  }
  return 0;
}

API int cuInit(unsigned flags) {
  if (ready) return SUCCESS;
  if (map_state()) return NO_DEVICE;
  int order[MAX_GPUS];
  int shown = order_of(order);
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  char list[1024];
  snprintf(list, sizeof list, "%s", visible ? visible : "");
  if (!visible)
    for (int i = 0; i < shown; i++) add(order[i], S->gpu[order[i]].uuid);
  else
    for (char *rest = list, *word; (word = strsep(&rest, ",")) && add_named(word, order, shown);) { }
  ready = 1;
  note("cuInit", -1, flags, 0, count ? SUCCESS : NO_DEVICE);
  return count ? SUCCESS : NO_DEVICE;
}
API int cuDriverGetVersion(int *o) {
  if (map_state()) return NO_DEVICE;
  *o = (int)S->cuda_version;
  return SUCCESS;
}
API int cuDeviceGetCount(int *o) {
  if (!ready) return NOT_INITIALIZED;
  *o = count;
  return SUCCESS;
}
API int cuDeviceGet(int *o, int n) {
  if (!ready) return NOT_INITIALIZED;
  if (n < 0 || n >= count) return INVALID_DEVICE;
  *o = n;
  return SUCCESS;
}
API int cuDeviceGetUuid_v2(unsigned char *o, int n) {
  if (!ready) return NOT_INITIALIZED;
  if (n < 0 || n >= count) return INVALID_DEVICE;
  const char *text = device_uuid[n] + 4;
  for (int k = 0; k < 16; k++, text += 2) {
    unsigned byte = 0;
    if (*text == '-') text++;
    sscanf(text, "%2x", &byte);
    o[k] = (unsigned char)byte;
  }
  return SUCCESS;
}
API int cuDeviceGetUuid(unsigned char *o, int n) { return cuDeviceGetUuid_v2(o, n); }
/* A context makes the process appear on its card. */
API int cuDevicePrimaryCtxRetain(void **o, int n) {
  if (!ready) return NOT_INITIALIZED;
  if (n < 0 || n >= count) return INVALID_DEVICE;
  gpu_t *g = &S->gpu[device_gpu[n]];
  int fd = state_lock();
  if (g->nproc < MAX_PROCS) {
    g->proc[g->nproc] = (proc_t){(uint64_t)getpid(), 0, 512u << 20};
    g->nproc++;
  }
  state_unlock(fd);
  *o = g;
  note("cuDevicePrimaryCtxRetain", device_gpu[n], 0, 0, SUCCESS);
  return SUCCESS;
}

/* A context runs two kernels, known by their names (tests/gpu/driver.py): "seven" writes to an
 * address, and the context is dead when that is nowhere; "spin" never ends. */
enum { ILLEGAL_ADDRESS = 700, NOT_FOUND = 500 };
static void *current;
static int sticky, spinning;

API int cuCtxSetCurrent(void *c) {
  current = c;
  return SUCCESS;
}
API int cuCtxGetCurrent(void **o) {
  *o = current;
  return SUCCESS;
}
API int cuCtxSynchronize(void) {
  while (spinning) pause();
  return sticky;
}
API int cuModuleLoadData(void **o, const void *image) {
  *o = (void *)image;
  return current ? sticky : NOT_INITIALIZED;
}
API int cuModuleGetFunction(const char **o, void *module, const char *name) {
  (void)module;
  *o = !strcmp(name, "seven") ? "seven" : !strcmp(name, "spin") ? "spin" : NULL;
  return *o ? sticky : NOT_FOUND;
}
API int cuLaunchKernel(const char *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                       unsigned by, unsigned bz, unsigned shared, void *stream, void **args,
                       void **extra) {
  (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream;
  (void)extra;
  if (sticky) return sticky;
  uint64_t where = *(uint64_t *)args[0];
  if (!strcmp(f, "spin")) spinning = 1;
  else if (where < 65536) sticky = ILLEGAL_ADDRESS;
  else *(uint32_t *)where = 7;
  return SUCCESS;
}
API int cuMemAlloc_v2(uint64_t *o, size_t bytes) {
  *o = (uint64_t)malloc(bytes);
  return sticky;
}
API int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) {
  if (cuCtxSynchronize()) return sticky;
  memcpy(to, (void *)from, bytes);
  return SUCCESS;
}
API int cuGetErrorName(int code, const char **o) {
  *o = code == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_UNKNOWN";
  return SUCCESS;
}
