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

#define ASSAY_ABI_VERSION 3

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
  int32_t stride; /* heads: columns of x from a head to the next; 0: head_dim. y is dense */
} AssayNorm;

typedef struct AssayL2Norm { /* per head by the head rule: r = 1 / sqrt(sum + 1e-6), y = (x * r) * scale */
  const float* x; /* [rows, x_columns], from the first head's first column on */
  float* y;       /* [rows, heads*head_dim] */
  int64_t rows, x_columns, heads, head_dim;
  float scale;
  float reserved;
} AssayL2Norm;

typedef struct AssayGatedNorm { /* per head by the head rule: y = ((x * r) * w) * silu(z) */
  const float* x; /* x, z, y: [rows, heads*head_dim] */
  const float* z;
  const float* w; /* [head_dim] */
  float* y;
  int64_t rows, heads, head_dim;
  float eps;
  float reserved;
} AssayGatedNorm;

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

typedef struct AssayBinary { /* silu_mul: y = silu(a) * b; sigmoid_mul: y = a * sigmoid(b); add: y = a + b. y may be a or b */
  const float* a;
  const float* b;
  float* y;
  int64_t rows, columns;
} AssayBinary;

typedef struct AssayUnary { /* sigmoid: y = 1 / (1 + exp(-x)). y may be x */
  const float* x;
  float* y;
  int64_t rows, columns;
} AssayUnary;

typedef struct AssayColumnRun { /* columns [from + i*stride, + width) of x become [to + i*width, + width) of y, for i < count */
  const float* x;
  int64_t x_columns, from, stride, to, count, width;
} AssayColumnRun;
typedef struct AssayColumns { /* columns of up to four inputs side by side: every column of y is in exactly one run */
  AssayColumnRun runs[4];
  int32_t count;
  int32_t reserved;
  float* y; /* [rows, columns] */
  int64_t rows, columns;
} AssayColumns;

typedef struct AssayDecay { /* y = w[0] * softplus(x + w[1]) */
  const float* x; /* [rows, heads] */
  const float* w; /* [2, heads]: rate, dt */
  float* y;
  int64_t rows, heads;
} AssayDecay;

typedef struct AssaySpan { /* consecutive rows of one sequence, which follow what a state has seen */
  int32_t entry; /* of the state, before the first of them */
  int32_t reserved;
  int64_t first, rows;
} AssaySpan;

/* Recurrent states of one gated DeltaNet layer. An entry is what a sequence has after some row:
   conv [width][channels], the last inputs, the oldest first; state [v_heads][k_dim][v_dim]. */
typedef struct AssayStates {
  int64_t entries, width, channels, v_heads, k_dim, v_dim;
  int64_t stride; /* floats from an entry to the next one, of conv and of state */
  float* conv;
  float* state;
  const AssaySpan* spans;  /* [span_count]: of this pass */
  /* [rows]: the entry that takes the state behind the row; -1: none. Behind a span's last row that may be the span's own, behind
     others it is one that no span of the pass reads. */
  const int32_t* after;
  int64_t span_count;
} AssayStates;

typedef struct AssayConv { /* causal depthwise convolution over a sequence's rows, then silu */
  const float* x; /* [rows, channels] */
  const float* w; /* [width, channels]: the oldest input's tap first */
  float* y;       /* [rows, channels] */
  int64_t rows;
  AssayStates states;
} AssayConv;

typedef struct AssayDeltaRule { /* the gated delta rule, row after row */
  const float* q; /* [rows, k_heads*k_dim] */
  const float* k;
  const float* v;     /* [rows, v_heads*v_dim] */
  const float* beta;  /* [rows, v_heads] */
  const float* decay; /* [rows, v_heads]: a log */
  float* y;           /* [rows, v_heads*v_dim] */
  int64_t rows, k_heads;
  AssayStates states;
  /* Fused form, null: not asked for. q, k, v, beta and decay are made of these first, and not written: the l2_norms of conv's
     first k_heads*k_dim columns (times scale) and of as many behind them, its other columns, sigmoid(b), decay of a. */
  const float* conv;    /* [rows, states.channels] */
  const float* b;       /* [rows, v_heads] */
  const float* a;       /* [rows, v_heads] */
  const float* decay_w; /* [2, v_heads] */
  float scale;
  float reserved;
} AssayDeltaRule;

/* Ids of experts are whole numbers in f32, -1: no expert. topk: ids of the `chosen` largest logits, and where `weights` is given
   what topk_weights makes of them; a row with a NaN chooses nothing. topk_weights: of ids that are given. */
typedef struct AssayRouter {
  const float* logits; /* [rows, experts] */
  float* ids;          /* [rows, chosen]; topk_weights reads them */
  float* weights;      /* [rows, chosen] */
  int64_t rows, experts, chosen;
  int32_t normalised; /* a row's weights are divided by their sum */
  int32_t reserved;
} AssayRouter;

/* y[t][r] = the rows of expert ids[t][r] in w, times x[t], or x[t][r] where `by_rank`; NaN where there is no expert. */
typedef struct AssayExpertLinear {
  int32_t activations; /* of quantised weights */
  int32_t count;       /* matrices that share x: 1 or 2 */
  AssayWeight w[2];    /* [experts * outputs, columns]: all experts behind each other */
  float* y[2];         /* [rows, chosen, outputs] */
  const float* x;      /* [rows, columns] or [rows, chosen, columns] */
  const float* ids;    /* [rows, chosen] */
  int64_t rows, experts, chosen;
  int32_t by_rank;
  int32_t gated;       /* fused form, count 2: y[0] = silu(w[0] x) * (w[1] x); y[1] is null */
} AssayExpertLinear;

typedef struct AssayExpertSum { /* y[t] = sum over r of weights[t][r] * x[t][r], in rank order */
  const float* weights; /* [rows, chosen] */
  const float* x;       /* [rows, chosen, columns] */
  float* y;             /* [rows, columns] */
  int64_t rows, chosen, columns;
  const float* residual; /* fused form, null: not asked for. y = residual + sum */
} AssayExpertSum;

typedef struct AssayGatedAdd { /* y = sigmoid(gate[t]) * shared + x. y may be x or shared */
  const float* gate; /* [rows] */
  const float* shared;
  const float* x;
  float* y; /* [rows, columns] */
  int64_t rows, columns;
  const float* residual; /* fused form, null: not asked for. y = residual + that */
} AssayGatedAdd;

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
  int64_t experts, chosen; /* of products by expert: of all, and of each row; 0: there are none */
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

  int (*sigmoid_mul)(AssayDevice*, const AssayBinary*); /* y = a * sigmoid(b) */
  int (*sigmoid)(AssayDevice*, const AssayUnary*);
  int (*columns)(AssayDevice*, const AssayColumns*);
  int (*l2_norm)(AssayDevice*, const AssayL2Norm*);
  int (*gated_norm)(AssayDevice*, const AssayGatedNorm*);
  int (*decay)(AssayDevice*, const AssayDecay*);
  int (*conv)(AssayDevice*, const AssayConv*);
  int (*delta_rule)(AssayDevice*, const AssayDeltaRule*);
  int (*topk)(AssayDevice*, const AssayRouter*);
  int (*topk_weights)(AssayDevice*, const AssayRouter*);
  int (*expert_linear)(AssayDevice*, const AssayExpertLinear*);
  int (*expert_sum)(AssayDevice*, const AssayExpertSum*);
  int (*gated_add)(AssayDevice*, const AssayGatedAdd*);
} AssayModule;

typedef const AssayModule* (*AssayModuleFn)(void);
#define ASSAY_MODULE_SYMBOL "assay_module"

#ifdef __cplusplus
}
#endif
#endif
