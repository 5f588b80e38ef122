/* Damages chunks in many ways and decodes them under AddressSanitizer; see test_fuzz_loop.py.
 *
 * Arguments: how many rounds; a seed; the corpus; then libraries that have the decoders. The corpus is a sequence of
 * records, each of int64: size of the pipeline row, filter mask, decoded size, stored size; then the row and the bytes.
 */
#include <dlfcn.h>
#include <stdio.h>

#include "../../../ray_h5/read/kernel/loop.c"

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
  printf("%ld of %ld decoded\n", taken, rounds);
  return 0;
}
