/* Damages chunks and positions in many ways, and decodes and scatters them under AddressSanitizer; see test_fuzz_loop.py.
 *
 * Arguments: how many rounds; a seed; the corpus; then libraries that have the decoders. The corpus is a sequence of
 * records, each of int64: size of the pipeline row, filter mask, decoded size, stored size; then the row and the bytes.
 */
#include <dlfcn.h>
#include <stdio.h>

#include "../../../ray_h5/read/native/loop.c"

enum { MOST_RECORDS = 4096 };

typedef struct {
  const int64_t *row;
  int64_t mask, decoded, stored;
  const uint8_t *bytes;
} record;

static uint64_t state;

static uint64_t next(void) { /* xorshift64* */
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  return state * UINT64_C(2685821657736338717);
}

static void *function(int count, char **paths, const char *name) {
  for (int i = 0; i < count; i++) {
    void *library = dlopen(paths[i], RTLD_NOW | RTLD_GLOBAL), *found = library ? dlsym(library, name) : NULL;
    if (found != NULL) return found;
  }
  return NULL;
}

/* Makes rows dense of bounds and positions that may be anything. */
static long dense(long rounds) {
  long made = 0;
  for (long round = 0; round < rounds; round++) {
    static const int64_t items[] = {1, 2, 4, 8, 16};
    int64_t item = items[next() % 5], width = (int64_t)(next() % 20), rows = (int64_t)(next() % 5);
    int64_t entries = (int64_t)(next() % 12), most = next() % 4 ? width : width + 3;
    int wide = next() % 2, is_zero = next() % 2;
    size_t index = wide ? 8 : 4;
    /* Of exactly their sizes, so that a byte before or after is an error. */
    uint8_t *indices = malloc((size_t)entries * index + !entries), *data = malloc((size_t)(entries * item) + !entries);
    uint8_t *out = malloc((size_t)(rows * width * item) + !(rows * width));
    int64_t starts[5], stops[5];
    memset(data, 1, (size_t)(entries * item));
    if (is_zero) memset(out, 0, (size_t)(rows * width * item));
    for (int64_t i = 0; i < entries; i++) {
      int64_t at = next() % 9 ? i * (most + 1) / (entries + 1) : (int64_t)next();
      int32_t narrow = (int32_t)at;
      memcpy(indices + (size_t)i * index, wide ? (void *)&at : (void *)&narrow, index);
    }
    for (int64_t row = 0; row < rows; row++) {
      starts[row] = next() % 16 ? (int64_t)(next() % (uint64_t)(entries + 1)) : (int64_t)next();
      stops[row] = next() % 16 ? (int64_t)((uint64_t)starts[row] + next() % (uint64_t)(entries + 2)) : (int64_t)next();
    }
    int64_t done = 0;
    while ((done = ray_h5_dense(done, rows, starts, stops, entries, indices, wide, data, item, width, out, is_zero)) <
           rows)
      done++; /* rows that it leaves to NumPy */
    made += done == rows;
    free(indices);
    free(data);
    free(out);
  }
  return made;
}

int main(int count, char **arguments) {
  if (count < 4) return 2;
  long rounds = atol(arguments[1]);
  state = (uint64_t)atol(arguments[2]) | 1;
  FILE *file = fopen(arguments[3], "rb");
  if (file == NULL) return 2;
  fseek(file, 0, SEEK_END);
  long size = ftell(file);
  rewind(file);
  uint8_t *corpus = malloc((size_t)size);
  if (fread(corpus, 1, (size_t)size, file) != (size_t)size) return 2;
  fclose(file);

  int libraries = count - 4;
  char **paths = arguments + 4;
  codecs given = {0};
  *(void **)&given.deflate_new = function(libraries, paths, "libdeflate_alloc_decompressor");
  *(void **)&given.deflate = function(libraries, paths, "libdeflate_zlib_decompress");
  *(void **)&given.deflate_free = function(libraries, paths, "libdeflate_free_decompressor");
  *(void **)&given.zstd_new = function(libraries, paths, "ZSTD_createDCtx");
  *(void **)&given.zstd = function(libraries, paths, "ZSTD_decompressDCtx");
  *(void **)&given.zstd_free = function(libraries, paths, "ZSTD_freeDCtx");
  *(void **)&given.lz4 = function(libraries, paths, "LZ4_decompress_safe");
  *(void **)&given.blosc = function(libraries, paths, "blosc_decompress_ctx");
  context *of = ray_h5_context(&given);

  static record records[MOST_RECORDS];
  int held = 0;
  for (long at = 0; at + 32 <= size && held < MOST_RECORDS; held++) {
    int64_t head[4];
    memcpy(head, corpus + at, sizeof head);
    int64_t *row = malloc((size_t)head[0]);
    memcpy(row, corpus + at + 32, (size_t)head[0]);
    records[held] = (record){row, head[1], head[2], head[3], corpus + at + 32 + head[0]};
    at += 32 + head[0] + head[3];
  }

  long taken = 0;
  for (long round = 0; round < rounds; round++) {
    record one = records[next() % (uint64_t)held];
    int64_t stored = one.stored, decoded = one.decoded;
    if (next() % 3 == 0 && stored > 0) stored = (int64_t)(next() % (uint64_t)(stored + 1));
    if (next() % 4 == 0) decoded = (int64_t)(next() % (uint64_t)(2 * decoded + 2));
    /* Of exactly their sizes, so that a byte before or after is an error. */
    uint8_t *in = malloc((size_t)(stored ? stored : 1)), *out = malloc((size_t)(decoded ? decoded : 1));
    memcpy(in, one.bytes, (size_t)stored);
    for (int flips = (int)(next() % 6); flips > 0 && stored > 0; flips--) {
      uint64_t most = next() % 2 ? (uint64_t)stored : (uint64_t)(stored < 40 ? stored : 40);
      in[next() % most] = (uint8_t)next();
    }
    int64_t mask = next() % 8 ? one.mask : (int64_t)(next() % 8);
    if (ray_h5_decode(of, one.row, mask, in, stored, out, decoded)) {
      taken++;
      volatile uint8_t sum = 0; /* all of it was written */
      for (int64_t i = 0; i < decoded; i++) sum = (uint8_t)(sum + out[i]);
    }
    free(in);
    free(out);
  }
  ray_h5_free(of);
  for (int i = 0; i < held; i++) free((void *)records[i].row);
  free(corpus);
  if (dense(rounds) != rounds) return 3;
  printf("%ld of %ld decoded\n", taken, rounds);
  return 0;
}
