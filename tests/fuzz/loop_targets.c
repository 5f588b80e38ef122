/* Targets of libFuzzer: the decoders of the loop, rows of sparse matrices, and tables of jobs; see test_coverage.py.
 *
 * The first byte of an input chooses the target. Outputs and inputs have exactly their sizes, so that a byte before or
 * after is an error of AddressSanitizer; an output that was made is read, so that one that was not written is an error.
 */
#include <dlfcn.h>

#include "../../ray_h5/read/native/loop.c"

static const uint8_t *input, *input_end;

static uint64_t take(int bytes) {
  uint64_t found = 0;
  for (int i = 0; i < bytes && input < input_end; i++) found |= (uint64_t)*input++ << 8 * i;
  return found;
}

static void *copied(size_t size) {
  uint8_t *made = calloc(size + !size, 1);
  for (size_t i = 0; i < size && input < input_end; i++) made[i] = *input++;
  return made;
}

static codecs given;

static void *function(char *paths, const char *name) {
  char *copy = strdup(paths), *state = NULL;
  void *found = NULL;
  for (char *path = strtok_r(copy, ":", &state); path != NULL && found == NULL; path = strtok_r(NULL, ":", &state)) {
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    found = library ? dlsym(library, name) : NULL;
  }
  free(copy);
  return found;
}

int LLVMFuzzerInitialize(int *count, char ***arguments) {
  (void)count, (void)arguments;
  char *paths = getenv("RAY_H5_DECODERS");
  if (paths == NULL) return 0;
  *(void **)&given.deflate_new = function(paths, "libdeflate_alloc_decompressor");
  *(void **)&given.deflate = function(paths, "libdeflate_zlib_decompress");
  *(void **)&given.deflate_free = function(paths, "libdeflate_free_decompressor");
  *(void **)&given.zstd_new = function(paths, "ZSTD_createDCtx");
  *(void **)&given.zstd = function(paths, "ZSTD_decompressDCtx");
  *(void **)&given.zstd_free = function(paths, "ZSTD_freeDCtx");
  *(void **)&given.lz4 = function(paths, "LZ4_decompress_safe");
  *(void **)&given.blosc = function(paths, "blosc_decompress_ctx");
  *(void **)&given.bitunshuffle = function(paths, "bshuf_bitunshuffle");
  return 0;
}

static void fuzz_decoders(void) {
  int64_t pipeline[PIPELINE_FIELDS] = {0}, decoded = (int64_t)take(2) % 5000;
  pipeline[0] = (int64_t)take(1) % 4;
  for (int i = 0; i < pipeline[0]; i++) {
    pipeline[1 + 2 * i] = (int64_t)take(1) % (BITSHUFFLE_ZSTD + 2);
    pipeline[2 + 2 * i] = (int64_t)take(1);
    if (pipeline[1 + 2 * i] == BITSHUFFLE) pipeline[2 + 2 * i] |= 8 * (int64_t)take(1) << 32;
  }
  int64_t mask = (int64_t)take(1);
  size_t size = (size_t)(input_end - input);
  uint8_t *in = copied(size), *out = malloc((size_t)decoded + !decoded);
  context *of = ray_h5_context(&given);
  if (ray_h5_decode(of, pipeline, mask, in, (int64_t)size, out, decoded)) {
    volatile uint8_t sum = 0;
    for (int64_t i = 0; i < decoded; i++) sum = (uint8_t)(sum + out[i]);
  }
  ray_h5_free(of);
  free(in);
  free(out);
}

static void fuzz_dense(void) {
  static const int64_t items[] = {1, 2, 4, 8, 16};
  int64_t item = items[take(1) % 5], width = (int64_t)take(1) % 40, rows = (int64_t)take(1) % 5, count = (int64_t)take(1) % 30;
  int wide = (int)take(1) & 1;
  int64_t *starts = copied((size_t)rows * 8), *stops = copied((size_t)rows * 8);
  void *indices = copied((size_t)count * (wide ? 8 : 4)), *data = copied((size_t)(count * item));
  uint8_t *out = malloc((size_t)(rows * width * item) + !(rows * width));
  int64_t row = 0;
  while ((row = ray_h5_dense(row, rows, starts, stops, count, indices, wide, data, item, width, out, 0)) < rows) row++;
  free(starts), free(stops), free(indices), free(data), free(out);
}

enum { ROOM = 200 };

static uint8_t stored[ROOM]; /* far from the arrays that are written to: no address near to one of them is here */

/* Addresses are near to those of two arrays, or of bytes in memory; numbers of pipelines and boxes are there. */
static void fuzz_tables(void) {
  enum { JOBS = 4, PARTS = 4, BOXES = 2 };
  int64_t(*jobs)[JOBS] = calloc(JOB_FIELDS, sizeof *jobs), (*parts)[PARTS] = calloc(PIECE_FIELDS, sizeof *parts);
  int64_t *boxes = calloc(BOXES, BOX_FIELDS * sizeof *boxes), pipelines[2 * PIPELINE_FIELDS] = {1, LZF, 0};
  uint8_t *arrays[3] = {malloc(ROOM), malloc(ROOM), malloc(ROOM)};
  for (int i = 0; i < 3; i++) memset(arrays[i], i, ROOM);
  pipelines[PIPELINE_FIELDS] = 1, pipelines[PIPELINE_FIELDS + 1] = SHUFFLE, pipelines[PIPELINE_FIELDS + 2] = 4;
  for (int job = 0; job < JOBS; job++) {
    uint64_t kind = take(1);
    jobs[FILE_DESCRIPTOR][job] = kind & 1 ? NO_DESCRIPTOR : IN_MEMORY;
    jobs[OFFSET][job] = (int64_t)(intptr_t)stored + (int16_t)take(2);
    jobs[SIZE][job] = (int16_t)take(2);
    jobs[PIPELINE][job] = (int64_t)(kind >> 2 & 3) % 3 - 1;
    jobs[DECODED][job] = kind & 16 ? jobs[SIZE][job] : (int64_t)take(3) - (1 << 20);
    jobs[DESTINATION][job] = kind & 32 ? 0 : (int64_t)(intptr_t)arrays[kind >> 6 & 1] + (int64_t)(int16_t)take(2);
    jobs[PIECES_BEGIN][job] = (int8_t)take(1);
    jobs[PIECES_END][job] = (int8_t)take(1);
  }
  for (int part = 0; part < PARTS; part++) {
    parts[PIECE_SOURCE][part] = (int16_t)take(2);
    parts[PIECE_DESTINATION][part] = (int64_t)(intptr_t)arrays[take(1) & 1] + (int16_t)take(2);
    parts[PIECE_SIZE][part] = (int16_t)take(2);
    parts[PIECE_BOX][part] = (int64_t)(take(1) % 3) - 1;
  }
  for (int box = 0; box < BOXES; box++) {
    boxes[box * BOX_FIELDS] = (int8_t)take(1);
    for (int at = 1; at < 12; at++) boxes[box * BOX_FIELDS + at] = at % 5 ? (int16_t)take(2) : (int64_t)take(8);
  }
  int64_t bounds[] = {(int64_t)(intptr_t)arrays[0], ROOM, (int64_t)(intptr_t)arrays[1], ROOM,
                      (int64_t)(intptr_t)stored, ROOM};
  int64_t counts[COUNTS] = {0}, times[TIMES] = {0};
  int8_t status[JOBS];
  context *of = ray_h5_context(&given);
  ray_h5_run(of, &jobs[0][0], JOBS, &parts[0][0], PARTS, pipelines, boxes, bounds, 3, 0, JOBS, status, counts,
             times);
  ray_h5_free(of);
  for (int i = 0; i < ROOM; i++)
    if (arrays[2][i] != 2) __builtin_trap();
  free(jobs), free(parts), free(boxes);
  for (int i = 0; i < 3; i++) free(arrays[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  input = bytes, input_end = bytes + size;
  uint64_t target = take(1);
  if (target % 4 == 0)
    fuzz_dense();
  else if (target % 4 == 1)
    fuzz_tables();
  else
    fuzz_decoders();
  return 0;
}
