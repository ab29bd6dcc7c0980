/* The C writer, compiled as C99; assay_dump_test.cpp reads what it wrote. */
#define ASSAY_DUMP_IMPLEMENTATION
#include "dumps/assay_dump.h"

/* Two prompts' worth of small tensors in every way the header offers. Returns 0 or the number of the step that failed. */
int assay_dump_c_test_write(const char *dir, int many) {
  const float f[6] = {1, 2, 3, 4, 5, 6};
  const int64_t ids[2] = {7, 8};
  const int64_t s23[2] = {2, 3}, s2[1] = {2}, s05[2] = {0, 5};
  int i, result = 0;
  assay_dump *d = assay_dump_create(dir);
  if (assay_dump_block(d, "engine", "{\"name\": \"c\"}")) result = 1;
  if (assay_dump_block(d, "prompts", "[{\"name\": \"prompt0\", \"ids\": [7, 8]}]")) result = 2;
  if (assay_dump_tensor(d, "prompt0/prefill/0/embed", "F32", 2, s23, f)) result = 3;
  if (assay_dump_tensor(d, "prompt0/ids", "I64", 1, s2, ids)) result = 4;
  if (assay_dump_begin(d, "prompt0/prefill/0/final_norm", "F32", 2, s23)) result = 5;
  if (assay_dump_append(d, f, 8) || assay_dump_append(d, f + 2, 16)) result = 6;
  if (assay_dump_tensor(d, "empty", "F32", 2, s05, NULL)) result = 7;
  if (assay_dump_tensor(d, "quote\"and\\slash", "BF16", 0, NULL, f)) result = 8;
  for (i = 0; i < many; ++i) {
    char name[64];
    snprintf(name, sizeof name, "prompt0/decode/%d/layer.0/attn_norm", i);
    if (assay_dump_tensor(d, name, "F32", 2, s23, f)) result = 9;
  }
  if (assay_dump_finish(d)) result = 10;
  assay_dump_free(d);
  return result;
}

/* Every misuse must be an error that says its reason. Returns the number of the first that is not. */
int assay_dump_c_test_misuse(const char *dir) {
  const float f[2] = {1, 2};
  const int64_t s2[1] = {2}, negative[1] = {-1}, huge[2] = {(int64_t)1 << 61, 8};
  int i;
  for (i = 1; i <= 9; ++i) {
    char sub[512];
    int bad = 0;
    assay_dump *d;
    snprintf(sub, sizeof sub, "%s/%d", dir, i);
    d = assay_dump_create(i == 9 ? "/proc/no/such/folder" : sub);
    assay_dump_tensor(d, "a", "F32", 1, s2, f);
    if (i == 1) assay_dump_tensor(d, "a", "F32", 1, s2, f);
    if (i == 2) assay_dump_tensor(d, "b c", "F32", 1, s2, f);
    if (i == 3) assay_dump_tensor(d, "b", "FP32", 1, s2, f);
    if (i == 4) assay_dump_tensor(d, "b", "F32", 1, negative, f);
    if (i == 5) assay_dump_tensor(d, "b", "F32", 2, huge, f);
    if (i == 6) assay_dump_begin(d, "b", "F32", 1, s2);  /* and no bytes */
    if (i == 7) assay_dump_append(d, f, 4);
    if (i == 8) assay_dump_block(d, "Bad key", "1");
    if (assay_dump_finish(d) == 0 || assay_dump_error(d)[0] == 0) bad = 1;
    assay_dump_free(d);
    if (bad) return i;
  }
  return 0;
}
