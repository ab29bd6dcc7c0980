/* A device module of another author in a page: "device" memory is the host's, two ops, the second one wrong on purpose (it
 * forgets eps, as a kernel tuned on well-scaled inputs would). See cuda/AUTHORS.md.
 *   cc -shared -fPIC -O2 -I. cuda/example/module.c -o example_module.so -lm
 *   assay check --module ./example_module.so --scope kernel --level max_rel */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/abi.h"

struct AssayDevice {
  AssayCounters counters;
};

static const char* error(const AssayDevice* d) { return d ? "" : "out of memory"; }
static int open_device(int32_t ordinal, AssayDevice** d) {
  (void)ordinal;
  *d = calloc(1, sizeof **d);
  return *d ? ASSAY_DONE : ASSAY_OUT_OF_MEMORY;
}
static void close_device(AssayDevice* d) { free(d); }
static int info(AssayDevice* d, AssayDeviceInfo* i) {
  (void)d;
  memset(i, 0, sizeof *i);
  strcpy(i->name, "the host");
  strcpy(i->architecture, "example");
  i->emulated = 1;
  i->memory_bytes = i->free_bytes = (uint64_t)1 << 32;
  return ASSAY_DONE;
}
static void counters(const AssayDevice* d, AssayCounters* c) { *c = d->counters; }
static const char* variant(const AssayDevice* d) { return (void)d, "plain"; }
static int allocate(AssayDevice* d, uint64_t n, void** p) {
  return (void)d, (*p = aligned_alloc(256, (n + 255) / 256 * 256)) ? ASSAY_DONE : ASSAY_OUT_OF_MEMORY;
}
static void release(AssayDevice* d, void* p) { (void)d, free(p); }
static int transfer(AssayDevice* d, void* to, const void* from, uint64_t n) { return (void)d, memcpy(to, from, n), ASSAY_DONE; }
static int fill(AssayDevice* d, void* p, int32_t byte, uint64_t n) { return (void)d, memset(p, byte, n), ASSAY_DONE; }
static int finish(AssayDevice* d) { return (void)d, ASSAY_DONE; }

static int silu_mul(AssayDevice* d, const AssayBinary* a) {
  d->counters.launches++;
  for (int64_t i = 0; i < a->rows * a->columns; i++) a->y[i] = a->a[i] / (1.0f + expf(-a->a[i])) * a->b[i];
  return ASSAY_DONE;
}
static int norm(AssayDevice* d, const AssayNorm* a) {
  if (a->heads) return ASSAY_REFUSED; /* rms_norm alone */
  d->counters.launches++;
  for (int64_t r = 0; r < a->rows; r++) {
    const float* x = a->x + r * a->columns;
    float sum = 0;
    for (int64_t k = 0; k < a->columns; k++) sum += x[k] * x[k];
    const float scale = 1.0f / sqrtf(sum / (float)a->columns); /* wrong: + eps */
    for (int64_t k = 0; k < a->columns; k++) a->y[r * a->columns + k] = x[k] * scale * a->w[k];
  }
  return ASSAY_DONE;
}

const AssayModule* assay_module(void) {
  static const AssayModule module = {
      .abi_version = ASSAY_ABI_VERSION, .struct_size = sizeof(AssayModule), .name = "example", .sources = "",
      .error = error, .open = open_device, .close = close_device, .info = info, .counters = counters, .variant = variant,
      .allocate = allocate, .release = release, .allocate_host = allocate, .release_host = release, .upload = transfer,
      .download = transfer, .fill = fill, .copy = transfer, .finish = finish, .norm = norm, .silu_mul = silu_mul};
  return &module;
}
