/* The C ABI of a device module: one shared library that runs program nodes on a device.
 *
 * A module exports one symbol, `assay_module`, of type AssayModuleFn. It returns a table of function pointers; a member that
 * is null is an op that the module does not offer. No C++ type, no exception and no CRT object (FILE*, malloc'd memory to be
 * freed by the other side) crosses this border, so that module and program may be built by different compilers.
 *
 * Results of every call that returns int: 1 done; 0 refused, nothing was written and the caller does it on the CPU; negative:
 * an error (ASSAY_ERROR, ASSAY_OUT_OF_MEMORY), whose words `error` returns.
 *
 * Pointers in op arguments are device memory unless a comment says host. Ops, uploads, downloads and fills are queued in one
 * order and run in it; `finish` waits for all. Matrices are row-major; a token row is one row. What an op computes, and in
 * which order, is engine/NUMERICS.md and the op's file in engine/ops; a module of another author that keeps another order is
 * judged by bounds (assay check --module, cuda/AUTHORS.md).
 *
 * An op called with rows = 0 runs nothing and answers whether it would do it: the types, shapes and fused forms of its other
 * arguments decide, never the number of rows (but `gated`, which is asked for with one row only).
 *
 * Rules for `capture`: between capture_begin and capture_end nothing runs, what is queued is recorded with its argument bytes
 * as they are then. What varies by token, position or slot is read from device memory by the kernels, never from arguments.
 */
#ifndef ASSAY_ENGINE_ABI_H
#define ASSAY_ENGINE_ABI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ASSAY_ABI_VERSION 2

enum { ASSAY_DONE = 1, ASSAY_REFUSED = 0, ASSAY_ERROR = -1, ASSAY_OUT_OF_MEMORY = -2 };

/* Element types of weights and caches: the order of WeightType (engine/model.h). */
enum {
  ASSAY_F32 = 0, ASSAY_F16, ASSAY_BF16, ASSAY_Q8_0, ASSAY_Q4_0, ASSAY_Q4_1, ASSAY_Q5_0, ASSAY_Q5_1, ASSAY_Q4_K, ASSAY_Q5_K, ASSAY_Q6_K,
  ASSAY_TYPES
};
/* What the activations of a quantised weight become: the order of Activations (engine/model.h). */
enum { ASSAY_ACTIVATIONS_S16 = 0, ASSAY_ACTIVATIONS_S8, ASSAY_ACTIVATIONS_F32 };

typedef struct AssayDevice AssayDevice; /* the module's own: a device, its queue, its scratch, its counters */

typedef struct AssayDeviceInfo {
  char name[128];         /* "NVIDIA H200" */
  char architecture[32];  /* "sm_90"; "simt" for the emulation */
  char driver[64];        /* versions of driver and runtime, compiler */
  int32_t processors;     /* multiprocessors */
  int32_t emulated;       /* 1: this is no device; its speed means nothing */
  uint64_t memory_bytes;  /* all */
  uint64_t free_bytes;    /* now */
} AssayDeviceInfo;

/* Counts since open; what a trace entry shows is a difference of two. A replayed graph counts as what it recorded. */
typedef struct AssayCounters {
  uint64_t launches, uploads, upload_bytes, downloads, download_bytes, allocations, frees, syncs, replays;
} AssayCounters;

/* A weight matrix as `pack_weight` left it in device memory. */
typedef struct AssayWeight {
  int32_t type;           /* ASSAY_F32 ... */
  int32_t reserved;
  int64_t rows, columns;  /* outputs, inputs */
  const void* data;       /* weight_bytes() long */
} AssayWeight;

typedef struct AssayPlace { /* a token row's place in the state: RowPlace of engine/ops/kernels.h */
  int32_t slot;
  int32_t reserved;
  int64_t position;
} AssayPlace;

/* K and V of one layer: [slot][kv_head][position][head_dim]. */
typedef struct AssayCache {
  int32_t type; /* ASSAY_F32, ASSAY_F16, ASSAY_BF16 */
  int32_t reserved;
  int64_t slots, kv_heads, context, head_dim;
  void* k;
  void* v;
} AssayCache;

typedef struct AssayEmbed { /* y[t] = widened row ids[t] */
  AssayWeight table;
  const int32_t* ids; /* [rows] */
  float* y;           /* [rows, columns] */
  int64_t rows;
} AssayEmbed;

typedef struct AssayNorm { /* heads 0: rms_norm over columns (float rule); else head_norm over head_dim of each head (head rule) */
  const float* x;
  const float* w; /* [columns] or [head_dim] */
  float* y;
  int64_t rows, columns, heads, head_dim;
  float eps;
  float reserved;
} AssayNorm;

typedef struct AssayLinear { /* y[i][t][n] = sum_k w[i][n][k] x[t][k], + bias[i][n] */
  int32_t activations; /* of quantised weights */
  int32_t count;       /* matrices that share x: 1 to 3 */
  AssayWeight w[3];
  const float* bias[3]; /* [rows of w] or null */
  float* y[3];          /* [rows, rows of w] */
  const float* x;       /* [rows, columns] */
  int64_t rows;         /* token rows */
  /* Fused forms; null or 0: not asked for. Their bytes are those of the single ops. A module may refuse any of them. */
  const float* norm;     /* [columns]: x is RMS-normed first (rms_norm with eps), and the normed x is not written */
  float eps;
  int32_t gated;         /* count 2: y[0] = silu(w[0] x) * (w[1] x); y[1] is null */
  const float* residual; /* count 1: y[0] = residual + product */
} AssayLinear;

typedef struct AssayRope { /* pairs (j, j + rotary/2) of each head turn by the angles of the row's position */
  const float* x;
  float* y; /* may be x */
  const AssayPlace* places;
  const float* cos; /* [context, rotary/2] */
  const float* sin;
  int64_t rows, heads, head_dim, rotary;
} AssayRope;

typedef struct AssayKvStore { /* rounds k and v rows into the cache at their places */
  const float* k; /* [rows, kv_heads*head_dim] */
  const float* v;
  const AssayPlace* places;
  AssayCache cache;
  int64_t rows;
  int64_t* overflow; /* lowered to the smallest row*columns+column (v: + rows*columns) whose finite value does not fit f16 */
} AssayKvStore;

typedef struct AssayHeads { /* fused: head_norm of q and k (where weights are given), rope of both, kv_store of k and v */
  const float* q; /* [rows, heads*head_dim] */
  const float* k; /* [rows, kv_heads*head_dim] */
  const float* v;
  const float* q_norm; /* [head_dim] or null */
  const float* k_norm;
  float* q_out; /* [rows, heads*head_dim]: rotated; may be q */
  const AssayPlace* places;
  const float* cos;
  const float* sin;
  AssayCache cache;
  int64_t rows, heads, rotary;
  float eps;
  float reserved;
  int64_t* overflow;
} AssayHeads;

typedef struct AssayAttention { /* causal: row t over positions 0 .. places[t].position of its slot, as stored */
  const float* q;
  float* y; /* both [rows, heads*head_dim] */
  const AssayPlace* places;
  AssayCache cache;
  int64_t rows, heads;
  int64_t longest; /* upper bound of position + 1 over the rows; under capture over those of every replay */
  float scale;
  float reserved;
  /* Fused form, null: not asked for. What makes the queries of these rows and stores their keys and values is done first: q is
     its q_out, places and cache are its own. Its bytes are those of `heads` and then `attention`. A module may refuse it. */
  const AssayHeads* heads_of;
} AssayAttention;

typedef struct AssayBinary { /* silu_mul: y = silu(a) * b; add: y = a + b. y may be a or b */
  const float* a;
  const float* b;
  float* y;
  int64_t rows, columns;
} AssayBinary;

typedef struct AssayGather { /* y[i] = x[index[i]] */
  const float* x;
  const int32_t* index; /* [rows] */
  float* y;             /* [rows, columns] */
  int64_t rows, columns;
} AssayGather;

typedef struct AssayArgmax { /* the largest element's column, ties to the lower one; -1 where the row holds a NaN */
  const float* x; /* [rows, columns] */
  int32_t* ids;   /* [rows] */
  int64_t rows, columns;
} AssayArgmax;

/* The largest of what ops will be asked for, so that scratch is allocated once and no op allocates. */
typedef struct AssayLimits {
  int64_t rows;    /* token rows of a pass */
  int64_t columns; /* inputs of a linear */
  int64_t heads, head_dim, context;
} AssayLimits;

typedef struct AssayModule {
  uint32_t abi_version; /* ASSAY_ABI_VERSION of the header that the module was built with */
  uint32_t struct_size; /* sizeof(AssayModule) there */
  const char* name;     /* "assay-cuda" */
  const char* sources;  /* hash of what the module was built from; "" if it does not say */

  /* Words on what went wrong last, with this device, or before there is one (null). Valid until the next call. */
  const char* (*error)(const AssayDevice*);
  int (*open)(int32_t ordinal, AssayDevice** device);
  void (*close)(AssayDevice*);
  int (*info)(AssayDevice*, AssayDeviceInfo*);
  void (*counters)(const AssayDevice*, AssayCounters*);
  /* The kernels that the last op ran: "gemv_q4_0_s16". Valid until the next call. */
  const char* (*variant)(const AssayDevice*);

  int (*allocate)(AssayDevice*, uint64_t bytes, void** memory); /* aligned to 256; contents undefined */
  void (*release)(AssayDevice*, void* memory);
  int (*allocate_host)(AssayDevice*, uint64_t bytes, void** memory); /* host memory that uploads and downloads of steps use */
  void (*release_host)(AssayDevice*, void* memory);
  int (*upload)(AssayDevice*, void* to, const void* host, uint64_t bytes);
  int (*download)(AssayDevice*, void* host, const void* from, uint64_t bytes); /* host memory is valid after finish */
  int (*fill)(AssayDevice*, void* memory, int32_t byte, uint64_t bytes);
  int (*copy)(AssayDevice*, void* to, const void* from, uint64_t bytes); /* inside the device */
  int (*finish)(AssayDevice*);
  /* Timing: `mark` notes when the queue reaches this place (0 to 4095); `elapsed` tells the seconds between two marks, after
     finish. Either may be null. */
  int (*mark)(AssayDevice*, int32_t place);
  int (*elapsed)(AssayDevice*, int32_t from, int32_t to, double* seconds);
  int (*reserve)(AssayDevice*, const AssayLimits*); /* grows scratch; a captured graph is void after it returned 1 having grown */

  int (*capture_begin)(AssayDevice*);
  int (*capture_end)(AssayDevice*, void** graph);
  int (*replay)(AssayDevice*, void* graph);
  void (*release_graph)(AssayDevice*, void* graph);

  /* Bytes that a packed matrix takes; 0: the type or shape is refused. */
  uint64_t (*weight_bytes)(const AssayDevice*, int32_t type, int64_t rows, int64_t columns);
  /* From the file's rows (device memory, as engine/formats/quant.h says) to `packed`, and back. */
  int (*pack_weight)(AssayDevice*, int32_t type, int64_t rows, int64_t columns, const void* raw, void* packed);
  int (*unpack_weight)(AssayDevice*, int32_t type, int64_t rows, int64_t columns, const void* packed, void* raw);

  /* What an op ("linear", "attention") rounds its operands to: "f32", "tf32", "f16", "bf16"; null: f32 everywhere. Bounds for
     modules that keep another order of sums come from it. */
  const char* (*operands)(const AssayDevice*, const char* op);

  int (*embed)(AssayDevice*, const AssayEmbed*);
  int (*norm)(AssayDevice*, const AssayNorm*);
  int (*linear)(AssayDevice*, const AssayLinear*);
  int (*rope)(AssayDevice*, const AssayRope*);
  int (*kv_store)(AssayDevice*, const AssayKvStore*);
  int (*heads)(AssayDevice*, const AssayHeads*);
  int (*attention)(AssayDevice*, const AssayAttention*);
  int (*silu_mul)(AssayDevice*, const AssayBinary*);
  int (*add)(AssayDevice*, const AssayBinary*);
  int (*gather)(AssayDevice*, const AssayGather*);
  int (*argmax)(AssayDevice*, const AssayArgmax*);
} AssayModule;

typedef const AssayModule* (*AssayModuleFn)(void);
#define ASSAY_MODULE_SYMBOL "assay_module"

#ifdef __cplusplus
}
#endif
#endif
