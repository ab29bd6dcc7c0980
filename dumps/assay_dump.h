/* assay_dump.h - write dumps that Assay compares, from C99 or C++, with nothing but the C library and POSIX.
 *
 * In exactly one file, before any other include:
 *     #define ASSAY_DUMP_IMPLEMENTATION
 *     #include "assay_dump.h"
 * Then:
 *     assay_dump *d = assay_dump_create("out");
 *     int64_t shape[2] = {tokens, hidden};
 *     assay_dump_block(d, "engine", "{\"name\": \"mine\", \"version\": \"1.2\"}");
 *     assay_dump_tensor(d, "prompt0/prefill/0/layer.0/attn_norm", "F32", 2, shape, values);
 *     if (assay_dump_finish(d) != 0) fprintf(stderr, "%s\n", assay_dump_error(d));
 *     assay_dump_free(d);
 *
 * Values go to disk as they come; memory holds the list of tensors only. The folder becomes a dump with the rename at the end
 * of assay_dump_finish(): without it no reader takes it for one. Errors stick: after the first one every call returns -1, so
 * checking the last call is enough. Hashes and statistics are left out; `assay import out --out whole` computes them (needed
 * for byte_exact without reading values; every other comparison takes the dump as it is).
 * Format: FORMAT.md beside this file. Not thread-safe.
 */
#ifndef ASSAY_DUMP_H
#define ASSAY_DUMP_H

#if defined(ASSAY_DUMP_IMPLEMENTATION) && !defined(_POSIX_C_SOURCE) && !defined(_GNU_SOURCE)
#define _POSIX_C_SOURCE 200809L
#endif

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct assay_dump assay_dump;

/* Creates the folder `dir`, which must be absent or empty. NULL only if there is no memory; other errors stick. */
assay_dump *assay_dump_create(const char *dir);
/* One whole tensor, row-major. dtype: F64 F32 F16 BF16 I64 I32 I16 I8 U64 U32 U16 U8 BOOL. name: 1 to 512 printable ASCII
 * characters without blanks, used once. The order of the calls is the order of execution. Returns 0, or -1. */
int assay_dump_tensor(assay_dump *d, const char *name, const char *dtype, int axes, const int64_t *shape, const void *data);
/* The same in pieces: begin, then bytes in order, any number of calls, until the tensor is full. */
int assay_dump_begin(assay_dump *d, const char *name, const char *dtype, int axes, const int64_t *shape);
int assay_dump_append(assay_dump *d, const void *data, size_t bytes);
/* A block of the manifest: key [a-z_], value JSON text, which is written as it is ("prompts", "engine", "options", "rows"). */
int assay_dump_block(assay_dump *d, const char *key, const char *json);
/* Writes the manifest and makes the folder a dump. Returns 0, or -1. */
int assay_dump_finish(assay_dump *d);
/* The first error, or "". */
const char *assay_dump_error(const assay_dump *d);
/* Also without finish: the folder stays an unfinished dump. */
void assay_dump_free(assay_dump *d);

#ifdef __cplusplus
}
#endif

#ifdef ASSAY_DUMP_IMPLEMENTATION

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Every part file starts with a header of this size, padded with blanks, so that values can be written before the header is
 * known. A part ends when its header is full or it holds a gigabyte. */
#define ASSAY_DUMP_HEADER ((size_t)256 * 1024)
#define ASSAY_DUMP_PART_BYTES ((uint64_t)1 << 30)

typedef struct {
  char *text;
  size_t size, capacity;
} assay_dump_text;

struct assay_dump {
  char error[512];
  char *dir;
  int fd;                          /* of the open part, or -1 */
  int parts;
  uint64_t offset;                 /* of the next value in the part, behind its header */
  uint64_t left;                   /* bytes that the open tensor still lacks */
  assay_dump_text header;          /* of the open part */
  assay_dump_text files, tensors;  /* JSON lists for the manifest */
  assay_dump_text blocks;
  assay_dump_text names;           /* of all tensors, each followed by a newline */
  int count, finished;
};

static int assay_dump_fail(assay_dump *d, const char *format, ...) {
  if (d->error[0] == 0) {
    va_list args;
    va_start(args, format);
    vsnprintf(d->error, sizeof d->error, format, args);
    va_end(args);
  }
  return -1;
}

static int assay_dump_put(assay_dump *d, assay_dump_text *t, const char *format, ...) {
  for (;;) {
    va_list args;
    int n;
    const size_t room = t->capacity - t->size;
    va_start(args, format);
    n = vsnprintf(t->text ? t->text + t->size : NULL, room, format, args);
    va_end(args);
    if (n < 0) return assay_dump_fail(d, "text can't be formatted");
    if ((size_t)n < room) {
      t->size += (size_t)n;
      return 0;
    }
    {
      const size_t capacity = 2 * t->capacity + (size_t)n + 1024;
      char *grown = (char *)realloc(t->text, capacity);
      if (!grown) return assay_dump_fail(d, "out of memory for the list of tensors");
      t->text = grown;
      t->capacity = capacity;
    }
  }
}

static int assay_dump_write(assay_dump *d, int fd, uint64_t offset, const void *data, size_t bytes) {
  const char *p = (const char *)data;
  while (bytes > 0) {
    const ssize_t n = pwrite(fd, p, bytes, (off_t)offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      return assay_dump_fail(d, "%s: part-%04d.safetensors can't be written (%lu bytes left): %s", d->dir, d->parts,
                             (unsigned long)bytes, strerror(n < 0 ? errno : ENOSPC));
    }
    p += n;
    offset += (uint64_t)n;
    bytes -= (size_t)n;
  }
  return 0;
}

static char *assay_dump_path(const assay_dump *d, const char *name) {
  const size_t size = strlen(d->dir) + strlen(name) + 2;
  char *path = (char *)malloc(size);
  if (path) snprintf(path, size, "%s/%s", d->dir, name);
  return path;
}

static int assay_dump_open_file(assay_dump *d, const char *name) {
  char *path = assay_dump_path(d, name);
  const int fd = path ? open(path, O_RDWR | O_CREAT | O_TRUNC, 0666) : -1;
  if (fd < 0) assay_dump_fail(d, "%s/%s: can't be created: %s", d->dir, name, strerror(errno));
  free(path);
  return fd;
}

static int assay_dump_close_part(assay_dump *d) {
  unsigned char length[8];
  const uint64_t size = ASSAY_DUMP_HEADER - 8;
  int i, fd = d->fd;
  char *blanks;
  if (fd < 0) return 0;
  if (assay_dump_put(d, &d->header, "}")) return -1;
  blanks = (char *)malloc((size_t)size);
  if (!blanks) return assay_dump_fail(d, "out of memory for a header");
  memset(blanks, ' ', (size_t)size);
  memcpy(blanks, d->header.text, d->header.size);
  for (i = 0; i < 8; ++i) length[i] = (unsigned char)(size >> (8 * i));
  if (assay_dump_write(d, fd, 0, length, 8) == 0) assay_dump_write(d, fd, 8, blanks, (size_t)size);
  free(blanks);
  d->fd = -1;
  if (fsync(fd) != 0) assay_dump_fail(d, "%s: part-%04d.safetensors can't be flushed: %s", d->dir, d->parts, strerror(errno));
  if (close(fd) != 0) assay_dump_fail(d, "%s: part-%04d.safetensors can't be closed: %s", d->dir, d->parts, strerror(errno));
  assay_dump_put(d, &d->files, "%s{\"name\": \"part-%04d.safetensors\", \"bytes\": %llu}", d->parts ? ", " : "", d->parts,
                 (unsigned long long)(ASSAY_DUMP_HEADER + d->offset));
  ++d->parts;
  d->header.size = 0;
  d->offset = 0;
  return d->error[0] ? -1 : 0;
}

assay_dump *assay_dump_create(const char *dir) {
  assay_dump *d = (assay_dump *)calloc(1, sizeof *d);
  char *path;
  int fd;
  if (!d) return NULL;
  d->fd = -1;
  d->dir = (char *)malloc(strlen(dir) + 1);
  if (!d->dir) {
    free(d);
    return NULL;
  }
  strcpy(d->dir, dir);
  if (mkdir(dir, 0777) != 0 && errno != EEXIST) assay_dump_fail(d, "%s: the folder can't be created: %s", dir, strerror(errno));
  path = assay_dump_path(d, "manifest.json");
  if (path && access(path, F_OK) == 0) assay_dump_fail(d, "%s: the folder holds a finished dump already", dir);
  free(path);
  if (d->error[0]) return d;
  fd = assay_dump_open_file(d, "manifest.json.tmp");  /* marks an unfinished dump */
  if (fd >= 0) close(fd);
  return d;
}

int assay_dump_begin(assay_dump *d, const char *name, const char *dtype, int axes, const int64_t *shape) {
  static const char *const kTypes[] = {"F64", "I64", "U64", "F32", "I32", "U32", "F16", "BF16", "I16", "U16", "I8", "U8", "BOOL"};
  static const int kSizes[] = {8, 8, 8, 4, 4, 4, 2, 2, 2, 2, 1, 1, 1};
  uint64_t bytes = 0, most = (uint64_t)1 << 62;
  size_t length = strlen(name), i;
  int a, empty = 0;
  const char *found;
  char list[64 * 24];
  size_t at = 0;
  if (d->error[0]) return -1;
  if (d->finished) return assay_dump_fail(d, "%s: a tensor after finish", d->dir);
  if (d->left) return assay_dump_fail(d, "the tensor before %s lacks %llu bytes", name, (unsigned long long)d->left);
  if (length < 1 || length > 512) return assay_dump_fail(d, "a tensor name of %lu bytes; wanted 1 to 512", (unsigned long)length);
  for (i = 0; i < length; ++i) {
    if (name[i] <= 0x20 || name[i] >= 0x7f) return assay_dump_fail(d, "a tensor name with a blank or a byte that is not ASCII");
  }
  for (i = 0; i < sizeof kSizes / sizeof kSizes[0]; ++i) {
    if (strcmp(kTypes[i], dtype) == 0) bytes = (uint64_t)kSizes[i];
  }
  if (bytes == 0) return assay_dump_fail(d, "%s: unknown dtype %s", name, dtype);
  if (axes < 0 || axes > 64) return assay_dump_fail(d, "%s: %d axes; wanted 0 to 64", name, axes);
  for (a = 0; a < axes; ++a) {
    if (shape[a] < 0) return assay_dump_fail(d, "%s: negative shape", name);
    if (shape[a] == 0) empty = 1;
    if (shape[a] > 0 && bytes > most / (uint64_t)shape[a]) return assay_dump_fail(d, "%s: the shape overflows", name);
    if (shape[a] > 0) bytes *= (uint64_t)shape[a];
    at += (size_t)snprintf(list + at, sizeof list - at, "%s%lld", a ? ", " : "", (long long)shape[a]);
  }
  list[at] = 0;
  if (empty) bytes = 0;
  for (found = d->names.text; found && (found = strstr(found, name)) != NULL; ++found) {
    if ((found == d->names.text || found[-1] == '\n') && found[length] == '\n') return assay_dump_fail(d, "%s: written twice", name);
  }
  /* A quote or a backslash in a name doubles in JSON: 2 * length is enough room. */
  if (d->fd >= 0 && (d->header.size + 2 * length + at + 128 > ASSAY_DUMP_HEADER - 8 || d->offset >= ASSAY_DUMP_PART_BYTES)) {
    if (assay_dump_close_part(d)) return -1;
  }
  if (d->fd < 0) {
    char part[64];
    snprintf(part, sizeof part, "part-%04d.safetensors", d->parts);
    d->fd = assay_dump_open_file(d, part);
    if (d->fd < 0) return -1;
  }
  {
    char quoted[1025];
    size_t q = 0;
    for (i = 0; i < length; ++i) {
      if (name[i] == '"' || name[i] == '\\') quoted[q++] = '\\';
      quoted[q++] = name[i];
    }
    quoted[q] = 0;
    assay_dump_put(d, &d->header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%llu,%llu]}",
                   d->header.size ? "," : "{", quoted, dtype, list, (unsigned long long)d->offset,
                   (unsigned long long)(d->offset + bytes));
    assay_dump_put(d, &d->tensors,
                   "%s\n  {\"name\": \"%s\", \"dtype\": \"%s\", \"shape\": [%s], \"order\": %d, \"file\": \"part-%04d.safetensors\"}",
                   d->count ? "," : "", quoted, dtype, list, d->count, d->parts);
  }
  assay_dump_put(d, &d->names, "%s\n", name);
  ++d->count;
  d->left = bytes;
  return d->error[0] ? -1 : 0;
}

int assay_dump_append(assay_dump *d, const void *data, size_t bytes) {
  if (d->error[0]) return -1;
  if (bytes > d->left) return assay_dump_fail(d, "%lu bytes for a tensor that lacks %llu", (unsigned long)bytes, (unsigned long long)d->left);
  if (assay_dump_write(d, d->fd, ASSAY_DUMP_HEADER + d->offset, data, bytes)) return -1;
  d->offset += bytes;
  d->left -= bytes;
  return 0;
}

int assay_dump_tensor(assay_dump *d, const char *name, const char *dtype, int axes, const int64_t *shape, const void *data) {
  if (assay_dump_begin(d, name, dtype, axes, shape)) return -1;
  return assay_dump_append(d, data, (size_t)d->left);
}

int assay_dump_block(assay_dump *d, const char *key, const char *json) {
  const char *k;
  if (d->error[0]) return -1;
  for (k = key; *k; ++k) {
    if ((*k < 'a' || *k > 'z') && *k != '_') return assay_dump_fail(d, "manifest key %.80s; wanted letters a-z and _", key);
  }
  return assay_dump_put(d, &d->blocks, " \"%s\": %s,\n", key, json);
}

int assay_dump_finish(assay_dump *d) {
  assay_dump_text text = {NULL, 0, 0};
  char *from, *to;
  int fd;
  if (d->error[0]) return -1;
  if (d->finished) return assay_dump_fail(d, "%s: finish twice", d->dir);
  if (d->left) return assay_dump_fail(d, "the last tensor lacks %llu bytes", (unsigned long long)d->left);
  if (assay_dump_close_part(d)) return -1;
  fd = assay_dump_open_file(d, "manifest.json.tmp");
  if (fd < 0) return -1;
  assay_dump_put(d, &text, "{\n \"format\": {\"name\": \"assay-dump\", \"version\": 1},\n \"capture\": {\"mode\": \"full\"},\n");
  if (d->blocks.size) assay_dump_put(d, &text, "%s", d->blocks.text);
  assay_dump_put(d, &text, " \"files\": [%s],\n \"tensors\": [", d->files.size ? d->files.text : "");
  if (d->tensors.size) assay_dump_put(d, &text, "%s", d->tensors.text);
  assay_dump_put(d, &text, "\n ]\n}\n");
  if (d->error[0] == 0) assay_dump_write(d, fd, 0, text.text, text.size);
  free(text.text);
  if (fsync(fd) != 0) assay_dump_fail(d, "%s/manifest.json.tmp: can't be flushed: %s", d->dir, strerror(errno));
  if (close(fd) != 0) assay_dump_fail(d, "%s/manifest.json.tmp: can't be closed: %s", d->dir, strerror(errno));
  if (d->error[0]) return -1;
  from = assay_dump_path(d, "manifest.json.tmp");
  to = assay_dump_path(d, "manifest.json");
  if (!from || !to || rename(from, to) != 0) assay_dump_fail(d, "%s/manifest.json: can't be renamed into place: %s", d->dir, strerror(errno));
  free(from);
  free(to);
  d->finished = d->error[0] == 0;
  return d->finished ? 0 : -1;
}

const char *assay_dump_error(const assay_dump *d) { return d ? d->error : "out of memory"; }

void assay_dump_free(assay_dump *d) {
  if (!d) return;
  if (d->fd >= 0) close(d->fd);
  free(d->header.text);
  free(d->files.text);
  free(d->tensors.text);
  free(d->blocks.text);
  free(d->names.text);
  free(d->dir);
  free(d);
}

#endif /* ASSAY_DUMP_IMPLEMENTATION */
#endif /* ASSAY_DUMP_H */
