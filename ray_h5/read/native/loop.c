/* Reads and decodes many chunks of HDF5 files in one call, without the interpreter's lock.
 *
 * `ray_h5.read.native` plans the jobs and calls `ray_h5_run`. A job is a byte range of a file: it is read into its place,
 * or it is a stored chunk that is decoded into its place or into scratch memory, from which pieces are copied.
 *
 * The files are not trusted. Each decoder checks every bound, and fills its output to the last byte or fails. A job that
 * fails has its status set, and is run again by the same steps in Python, which raise the error with its place. So this
 * file needs no messages, and it may decline whatever it does not know.
 *
 * There is no state but that of the caller's context, and of a pool of threads that contexts share. Several threads may
 * run, each with a context of its own.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* The rows of the table of jobs, each an array of int64. */
enum { FILE_DESCRIPTOR, OFFSET, SIZE, PIPELINE, MASK, DECODED, DESTINATION, PIECES_BEGIN, PIECES_END, JOB_FIELDS };

/* The rows of the table of pieces. */
enum { PIECE_SOURCE, PIECE_DESTINATION, PIECE_SIZE, PIECE_BOX, PIECE_FIELDS };

/* A box: how many axes; bytes of the innermost run; then count, source stride and destination stride of each axis. */
enum { BOX_AXES, BOX_RUN, BOX_FIRST, MAX_BOX_AXES = 32, BOX_FIELDS = BOX_FIRST + 3 * MAX_BOX_AXES };

/* A pipeline: how many steps; then codec and parameter of each step, in the order of writing. */
enum { MAX_STEPS = 8, PIPELINE_FIELDS = 1 + 2 * MAX_STEPS };

/* Codecs; the same numbers are in `ray_h5.read.native.job_table`. */
enum { SHUFFLE = 1, FLETCHER32, LZF, DEFLATE, ZSTD, LZ4, BLOSC, BITSHUFFLE, BITSHUFFLE_LZ4, BITSHUFFLE_ZSTD };

/* The status of a job. */
enum { DONE = 0, NOT_READ = 1, NOT_DECODED = 2, NOT_RUN = 3 };

/* What a call counts; and up to which job hints were given. */
enum { REQUESTS, BYTES_READ, CHUNKS_DECODED, HINTS, HINTED, COUNTS };

/* How often reads waited, as a level; see `count_cold`. */
enum { COLD_LEVEL, COLD_ON, HINTS_OFF, TIMES };

/* Instead of a descriptor: the offset is an address in memory, or Python reads the bytes. */
enum { IN_MEMORY = -1, NO_DESCRIPTOR = -2 };

/* Instead of a pipeline: values are stored as they are, or Python decodes them. */
enum { RAW = -1, IN_PYTHON = -2 };

static const int64_t SPAN_BYTES = 1 << 20, CHUNK_GAP = 512, ROW_GAP = 4096, AHEAD_READS = 96, AHEAD_BYTES = 16 << 20;
static const int64_t SLICE_BYTES = 256 << 10; /* what a thread of a pool runs at once */
static const int64_t SLICE_NS = 100000000; /* after this the call returns, so that Python sees signals */

typedef struct {
  void *(*deflate_new)(void);
  int (*deflate)(void *, const void *, size_t, void *, size_t, size_t *);
  void (*deflate_free)(void *);
  void *(*zstd_new)(void);
  size_t (*zstd)(void *, void *, size_t, const void *, size_t);
  size_t (*zstd_free)(void *);
  int (*lz4)(const char *, char *, int, int);
  int (*blosc)(const void *, void *, size_t, int);
  int64_t (*bitunshuffle)(const void *, void *, size_t, size_t, size_t);
} codecs;

typedef struct {
  uint8_t *bytes;
  int64_t size;
} buffer;

typedef struct pool pool;

enum { STORED, CHUNK, BITS, BETWEEN, BUFFERS = BETWEEN + 2 };

typedef struct {
  codecs codecs;
  void *deflate, *zstd;
  buffer buffers[BUFFERS];
  pool *pool; /* in which this context's thread runs jobs; or NULL */
  int64_t number; /* of the tables that it gives: those with a lower number come first */
} context;

static const int64_t KEPT_BYTES = 8 << 20; /* larger buffers are freed after a call */

static uint8_t *room(context *of, int which, int64_t size) {
  buffer *held = &of->buffers[which];
  if (size < 1) size = 1;
  if (held->size < size) {
    free(held->bytes);
    held->size = 0;
    held->bytes = malloc((size_t)size);
    if (held->bytes == NULL) return NULL;
    held->size = size;
  }
  return held->bytes;
}

static void shrink(context *of, int64_t most) {
  for (buffer *held = of->buffers; held < of->buffers + BUFFERS; held++) {
    if (held->size <= most) continue;
    free(held->bytes);
    *held = (buffer){NULL, 0};
  }
}

void *ray_h5_context(const codecs *given) {
  context *made = calloc(1, sizeof *made);
  if (made != NULL) made->codecs = *given;
  return made;
}

void ray_h5_free(context *of) {
  if (of == NULL) return;
  if (of->deflate != NULL) of->codecs.deflate_free(of->deflate);
  if (of->zstd != NULL) of->codecs.zstd_free(of->zstd);
  shrink(of, 0);
  free(of);
}

/* ---- decoders: each returns 1 if it filled `out` to the last byte --------------------------------------------- */

#define STRIDE 16

/* Copies up to 15 bytes more than `length`: a call of memcpy costs more than most copies of LZF. `from` is at least
   STRIDE before `to`, or elsewhere, and both have room for a whole number of strides. */
static inline void copy_by_strides(uint8_t *to, const uint8_t *from, int64_t length) {
  for (int64_t done = 0; done < length; done += STRIDE) memcpy(to + done, from + done, STRIDE);
}

/* LZF, as liblzf writes it: runs of literals, and references to at most 8 KiB before. What is copied beyond the end of
   a run is written again by the next one, as only a chunk that is filled is taken. */
static int lzf(const uint8_t *in, int64_t in_size, uint8_t *out, int64_t out_size) {
  const uint8_t *in_end = in + in_size;
  uint8_t *begin = out, *out_end = out + out_size;
  while (in < in_end) {
    int64_t control = *in++;
    if (control < 32) {
      int64_t length = control + 1;
      if (in_end - in < length || out_end - out < length) return 0;
      if (in_end - in >= 32 && out_end - out >= 32) copy_by_strides(out, in, length);
      else memcpy(out, in, (size_t)length);
      in += length;
      out += length;
      continue;
    }
    int64_t length = control >> 5;
    if (length == 7) {
      if (in >= in_end) return 0;
      length += *in++;
    }
    if (in >= in_end) return 0;
    int64_t distance = ((control & 31) << 8) + *in++ + 1;
    length += 2;
    if (out - begin < distance || out_end - out < length) return 0;
    const uint8_t *from = out - distance;
    if (distance >= STRIDE && out_end - out >= length + STRIDE) {
      copy_by_strides(out, from, length);
      out += length;
    } else if (distance >= length) {
      memcpy(out, from, (size_t)length);
      out += length;
    } else if (distance == 1) {
      memset(out, *from, (size_t)length);
      out += length;
    } else {
      while (length-- > 0) *out++ = *from++;
    }
  }
  return out == out_end;
}

static uint32_t big_endian(const uint8_t *at) {
  return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static uint32_t little_endian(const uint8_t *at) {
  return (uint32_t)at[3] << 24 | (uint32_t)at[2] << 16 | (uint32_t)at[1] << 8 | at[0];
}

static int deflate(context *of, const uint8_t *in, int64_t in_size, uint8_t *out, int64_t out_size) {
  if (of->codecs.deflate == NULL) return 0;
  if (of->deflate == NULL && (of->deflate = of->codecs.deflate_new()) == NULL) return 0;
  size_t decoded = 0;
  int failed = of->codecs.deflate(of->deflate, in, (size_t)in_size, out, (size_t)out_size, &decoded);
  return failed == 0 && decoded == (size_t)out_size;
}

static int zstd(context *of, const uint8_t *in, int64_t in_size, uint8_t *out, int64_t out_size) {
  if (of->codecs.zstd == NULL) return 0;
  if (of->zstd == NULL && (of->zstd = of->codecs.zstd_new()) == NULL) return 0;
  return of->codecs.zstd(of->zstd, out, (size_t)out_size, in, (size_t)in_size) == (size_t)out_size;
}

/* The layout of LZ4 and of bitshuffle: decoded size (8 bytes), block size (4), then for each block its stored size (4) and
 * bytes. Returns where the last block ends, or 0. `total` is the decoded size, of which bitshuffle has a rest at the end. */
static int64_t blocks(context *of, int64_t codec, const uint8_t *in, int64_t in_size, uint8_t *out, int64_t out_size,
                      int64_t total) {
  if (of->codecs.lz4 == NULL || in_size < 12) return 0;
  uint64_t decoded = (uint64_t)big_endian(in) << 32 | big_endian(in + 4);
  int64_t block = big_endian(in + 8), at = 12;
  if (decoded != (uint64_t)total || block < 1) return 0;
  for (int64_t done = 0; done < out_size;) {
    int64_t wanted = out_size - done < block ? out_size - done : block;
    if (in_size - at < 4) return 0;
    int64_t stored = big_endian(in + at);
    at += 4;
    if (in_size - at < stored || stored > INT32_MAX || wanted > INT32_MAX) return 0;
    if (codec == LZ4 && stored == wanted) /* LZ4 cannot make it smaller */
      memcpy(out + done, in + at, (size_t)wanted);
    else if (codec == BITSHUFFLE_ZSTD ? !zstd(of, in + at, stored, out + done, wanted)
                                      : of->codecs.lz4((const char *)in + at, (char *)out + done, (int)stored, (int)wanted) != wanted)
      return 0;
    at += stored;
    done += wanted;
  }
  return at;
}

/* Bits are shuffled in blocks of elements, eight by eight; the elements that are left over are stored as they are.
 * `parameter` is the bytes of an element; and, above 32 bits, the elements of a block where none is compressed. */
static int bitshuffle(context *of, int64_t codec, int64_t parameter, const uint8_t *in, int64_t in_size, uint8_t *out,
                      int64_t out_size) {
  int64_t element = parameter & INT32_MAX, block = parameter >> 32;
  if (of->codecs.bitunshuffle == NULL || element < 1 || out_size % element) return 0;
  if (codec != BITSHUFFLE) {
    int64_t rest = out_size % (8 * element);
    uint8_t *bits = room(of, BITS, out_size);
    if (bits == NULL) return 0;
    int64_t end = blocks(of, codec, in, in_size, bits, out_size - rest, out_size);
    if (end == 0 || in_size - end < rest || big_endian(in + 8) % (8 * element)) return 0;
    memcpy(bits + out_size - rest, in + end, (size_t)rest);
    block = big_endian(in + 8) / element;
    in = bits;
  } else if (in_size != out_size) {
    return 0;
  }
  return of->codecs.bitunshuffle(in, out, (size_t)(out_size / element), (size_t)element, (size_t)block) == out_size;
}

/* blosc is not given the size of its input, so its header is compared first. */
static int blosc(const context *of, const uint8_t *in, int64_t in_size, uint8_t *out, int64_t out_size) {
  if (of->codecs.blosc == NULL || in_size < 16 || out_size > INT32_MAX) return 0;
  if (little_endian(in + 4) != (uint64_t)out_size || little_endian(in + 12) > (uint64_t)in_size) return 0;
  return of->codecs.blosc(in, out, (size_t)out_size, 1) == out_size;
}

static uint32_t folded(uint32_t sum) {
  return (sum & 0xffff) + (sum >> 16);
}

/* HDF5's Fletcher-32: sums of big-endian 16-bit words; an odd last byte is the high half of a word. */
static uint32_t fletcher32(const uint8_t *in, int64_t size) {
  uint32_t low = 0, high = 0;
  int64_t words = size / 2;
  while (words > 0) {
    int64_t some = words > 360 ? 360 : words; /* the sums of so many words fit into 32 bits */
    words -= some;
    for (; some > 0; some--, in += 2) {
      low += (uint32_t)in[0] << 8 | in[1];
      high += low;
    }
    low = folded(low);
    high = folded(high);
  }
  if (size & 1) {
    low += (uint32_t)in[0] << 8;
    high = folded(high + low);
    low = folded(low);
  }
  return folded(high) << 16 | folded(low);
}

static int checksum_holds(const uint8_t *in, int64_t size) {
  uint32_t stored = little_endian(in + size), found = size > 0 ? fletcher32(in, size) : 0;
  /* HDF5 before 1.6.3 swapped the bytes of each half. */
  return stored == found || stored == ((found & 0x00ff00ff) << 8 | (found >> 8 & 0x00ff00ff));
}

#if defined(__SSE2__)
/* Assembles elements of 2, 4 or 8 bytes, 16 at a time; returns how many. Each round interleaves the first half of the
 * vectors with the second: bytes of an element that were `element` vectors apart are then half of that apart. */
static inline __attribute__((always_inline)) int64_t interleave(const uint8_t *in, int64_t length, int element,
                                                                uint8_t *out) {
  int64_t done = 0;
  for (; done + 16 <= length; done += 16) {
    __m128i a[8], b[8];
    for (int i = 0; i < element; i++) a[i] = _mm_loadu_si128((const __m128i *)(in + i * length + done));
    for (int apart = element; apart > 1; apart /= 2) {
      for (int i = 0; i < element / 2; i++) {
        b[2 * i] = _mm_unpacklo_epi8(a[i], a[i + element / 2]);
        b[2 * i + 1] = _mm_unpackhi_epi8(a[i], a[i + element / 2]);
      }
      for (int i = 0; i < element; i++) a[i] = b[i];
    }
    for (int i = 0; i < element; i++) _mm_storeu_si128((__m128i *)(out + done * element) + i, a[i]);
  }
  return done;
}
#endif

/* Assembles elements from their byte planes. Bytes that do not fill an element are stored after the planes. */
static void unshuffle(const uint8_t *in, int64_t size, int64_t element, uint8_t *out) {
  int64_t length = size / element, done = 0;
#if defined(__SSE2__)
  if (element == 2) done = interleave(in, length, 2, out);
  if (element == 4) done = interleave(in, length, 4, out);
  if (element == 8) done = interleave(in, length, 8, out);
#endif
  for (int64_t plane = 0; plane < element; plane++)
    for (int64_t i = done; i < length; i++) out[plane + i * element] = in[plane * length + i];
  memcpy(out + length * element, in + length * element, (size_t)(size - length * element));
}

/* Undoes a whole pipeline, the last step first. Sizes of intermediate results are known: a checksum adds four bytes, and
 * what is compressed is compressed last. */
int ray_h5_decode(context *of, const int64_t *pipeline, int64_t mask, const uint8_t *in, int64_t in_size, uint8_t *out,
                  int64_t out_size) {
  int64_t steps = pipeline[0], sizes[MAX_STEPS], size = out_size;
  int first = -1; /* the first step that was applied: it fills `out` */
  for (int i = 0; i < steps; i++) {
    if (mask >> i & 1) continue;
    if (first < 0) first = i;
    sizes[i] = size;
    if (pipeline[1 + 2 * i] == FLETCHER32) size += 4;
  }
  int slot = 0;
  for (int i = (int)steps - 1; i >= 0; i--) {
    if (mask >> i & 1) continue;
    int64_t codec = pipeline[1 + 2 * i], parameter = pipeline[2 + 2 * i];
    if (codec == FLETCHER32) {
      if (in_size < 4 || !checksum_holds(in, in_size - 4)) return 0;
      in_size -= 4;
      continue;
    }
    uint8_t *to = i == first ? out : room(of, BETWEEN + slot, sizes[i]);
    if (to == NULL) return 0;
    slot = 1 - slot;
    int done = 0;
    if (codec == SHUFFLE) {
      done = in_size == sizes[i] && parameter > 0;
      if (done) unshuffle(in, in_size, parameter, to);
    } else if (codec == LZF) {
      done = lzf(in, in_size, to, sizes[i]);
    } else if (codec == DEFLATE) {
      done = deflate(of, in, in_size, to, sizes[i]);
    } else if (codec == ZSTD) {
      done = zstd(of, in, in_size, to, sizes[i]);
    } else if (codec == LZ4) {
      done = blocks(of, codec, in, in_size, to, sizes[i], sizes[i]) > 0;
    } else if (codec == BLOSC) {
      done = blosc(of, in, in_size, to, sizes[i]);
    } else if (codec >= BITSHUFFLE) {
      done = bitshuffle(of, codec, parameter, in, in_size, to, sizes[i]);
    }
    if (!done) return 0;
    in = to;
    in_size = sizes[i];
  }
  if (in == out) return 1;
  if (in_size != out_size) return 0;
  memcpy(out, in, (size_t)out_size);
  return 1;
}

/* ---- reads ---------------------------------------------------------------------------------------------------- */

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * (int64_t)1000000000 + time.tv_nsec;
}

/* Threads share what follows. It is a guess: a count that another thread overwrites does no harm. */
static int64_t peek(const int64_t *at) {
  return __atomic_load_n(at, __ATOMIC_RELAXED);
}

static void poke(int64_t *at, int64_t value) {
  __atomic_store_n(at, value, __ATOMIC_RELAXED);
}

/* Counts whether bytes come from a disk: the level rises by 32, and falls by less, as many small rows lie in pages that were
 * fetched for others, so a short time shows little, and a hint that was not needed takes less than a microsecond. It is on
 * above 112, and off at 0. */
static void count_cold(int64_t *times, int happened, int64_t size) {
  int64_t at = peek(&times[COLD_LEVEL]), step = size < 4096 ? 1 : 8;
  if (happened) {
    poke(&times[COLD_LEVEL], at + 32 < 8192 ? at + 32 : 8192);
    if (at + 32 > 112) poke(&times[COLD_ON], 1);
  } else if (at > 0) {
    poke(&times[COLD_LEVEL], at > step ? at - step : 0);
    if (at <= step) poke(&times[COLD_ON], 0);
  }
}

static int gives_hints(const int64_t *times) {
  return peek(&times[COLD_ON]) && !peek(&times[HINTS_OFF]);
}

static int read_at(int64_t file, int64_t offset, int64_t size, uint8_t *to) {
  if (file == IN_MEMORY) {
    memcpy(to, (const uint8_t *)(intptr_t)offset, (size_t)size);
    return 1;
  }
  if (file < 0) return 0;
  while (size > 0) {
    ssize_t found = pread((int)file, to, (size_t)size, (off_t)offset);
    if (found < 0 && errno == EINTR) continue;
    if (found <= 0) return 0; /* an error, or the end of the file */
    offset += found;
    size -= found;
    to += found;
  }
  return 1;
}

static void copy_box(const int64_t *box, int axis, const uint8_t *from, uint8_t *to) {
  if (axis == box[BOX_AXES]) {
    memcpy(to, from, (size_t)box[BOX_RUN]);
    return;
  }
  const int64_t *at = box + BOX_FIRST + 3 * axis;
  if (axis == box[BOX_AXES] - 1) { /* a call of memcpy takes longer than a copy of a few bytes */
#define COPY_RUNS(size) \
      case size: \
        for (int64_t i = 0; i < at[0]; i++, from += at[1], to += at[2]) memcpy(to, from, size); \
        return
    switch (box[BOX_RUN]) {
      COPY_RUNS(4);
      COPY_RUNS(8);
      COPY_RUNS(16);
      COPY_RUNS(32);
      COPY_RUNS(64);
      COPY_RUNS(128);
    }
#undef COPY_RUNS
  }
  for (int64_t i = 0; i < at[0]; i++) copy_box(box, axis + 1, from + i * at[1], to + i * at[2]);
}

typedef struct {
  const int64_t *field[JOB_FIELDS];
  const int64_t *piece[PIECE_FIELDS];
  int64_t pieces;
  const int64_t *pipelines, *boxes;
} table;

static void copy_pieces(const table *of, int64_t job, const uint8_t *from) {
  for (int64_t i = of->field[PIECES_BEGIN][job]; i < of->field[PIECES_END][job]; i++) {
    uint8_t *to = (uint8_t *)(intptr_t)of->piece[PIECE_DESTINATION][i];
    const uint8_t *source = from + of->piece[PIECE_SOURCE][i];
    int64_t box = of->piece[PIECE_BOX][i];
    if (box < 0)
      memcpy(to, source, (size_t)of->piece[PIECE_SIZE][i]);
    else
      copy_box(of->boxes + box * BOX_FIELDS, 0, source, to);
  }
}

/* Makes the values of a job of its stored bytes. */
static int place(context *of, const table *jobs, int64_t job, const uint8_t *stored, int64_t *counts) {
  int64_t pipeline = jobs->field[PIPELINE][job], size = jobs->field[DECODED][job];
  int64_t address = jobs->field[DESTINATION][job];
  const uint8_t *values = stored;
  if (pipeline >= 0) {
    uint8_t *to = address ? (uint8_t *)(intptr_t)address : room(of, CHUNK, size);
    if (to == NULL) return 0;
    const int64_t *steps = jobs->pipelines + pipeline * PIPELINE_FIELDS;
    if (!ray_h5_decode(of, steps, jobs->field[MASK][job], stored, jobs->field[SIZE][job], to, size)) return 0;
    counts[CHUNKS_DECODED] += 1;
    values = to;
  } else if (address && (uint8_t *)(intptr_t)address != stored) {
    memcpy((uint8_t *)(intptr_t)address, stored, (size_t)size);
  }
  copy_pieces(jobs, job, values);
  return 1;
}

/* ---- checks: what a table says lies inside its arrays ----------------------------------------------------------- */

/* Arrays that jobs write to, and bytes in memory that they read: the address and size of each. */
typedef struct {
  const int64_t *bounds;
  int64_t count;
} arrays;

/* Whether bytes lie inside an array. The search begins where the last one ended: neighbours are in the same array. */
static int is_inside(const arrays *of, int64_t *last, int64_t address, int64_t size) {
  for (int64_t tried = 0; size >= 0 && tried < of->count; tried++) {
    int64_t begin = of->bounds[2 * *last], length = of->bounds[2 * *last + 1];
    if (address >= begin && address - begin <= length && size <= length - (address - begin)) return 1;
    *last = *last + 1 < of->count ? *last + 1 : 0;
  }
  return 0;
}

/* Sets how many bytes a box spans in its source and in its destination. Returns 0 if it is no box. */
static int box_spans(const int64_t *box, int64_t *source, int64_t *destination) {
  int64_t axes = box[BOX_AXES], spans[2] = {box[BOX_RUN], box[BOX_RUN]}, more;
  if (axes < 0 || axes > MAX_BOX_AXES || box[BOX_RUN] < 0) return 0;
  for (const int64_t *at = box + BOX_FIRST; at < box + BOX_FIRST + 3 * axes; at += 3) {
    if (at[0] < 1 || at[1] < 0 || at[2] < 0) return 0;
    for (int side = 0; side < 2; side++)
      if (__builtin_mul_overflow(at[0] - 1, at[1 + side], &more) || __builtin_add_overflow(spans[side], more, &spans[side]))
        return 0;
  }
  *source = spans[0];
  *destination = spans[1];
  return 1;
}

/* Whether the jobs from `first` to `stop` read and write inside of the arrays alone. */
static int are_inside(const table *jobs, const arrays *of, int64_t first, int64_t stop) {
  int64_t to = 0, from = 0, part = 0;
  for (int64_t job = first; job < stop; job++) {
    int64_t size = jobs->field[SIZE][job], decoded = jobs->field[DECODED][job], offset = jobs->field[OFFSET][job];
    int64_t destination = jobs->field[DESTINATION][job];
    int is_raw = jobs->field[PIPELINE][job] == RAW;
    if (size < 0 || decoded < 0 || (is_raw && size < decoded)) return 0;
    if (destination && !is_inside(of, &to, destination, is_raw ? size : decoded)) return 0;
    if (jobs->field[FILE_DESCRIPTOR][job] == IN_MEMORY && !is_inside(of, &from, offset, size)) return 0;
    int64_t first_piece = jobs->field[PIECES_BEGIN][job], last_piece = jobs->field[PIECES_END][job];
    if (first_piece < last_piece && (first_piece < 0 || last_piece > jobs->pieces)) return 0;
    for (int64_t i = first_piece; i < last_piece; i++) {
      int64_t begin = jobs->piece[PIECE_SOURCE][i], box = jobs->piece[PIECE_BOX][i];
      int64_t source = jobs->piece[PIECE_SIZE][i], written = source;
      if (box >= 0 && !box_spans(jobs->boxes + box * BOX_FIELDS, &source, &written)) return 0;
      if (begin < 0 || begin > decoded || source > decoded - begin) return 0;
      if (!is_inside(of, &part, jobs->piece[PIECE_DESTINATION][i], written)) return 0;
    }
  }
  return 1;
}

/* ---- jobs ------------------------------------------------------------------------------------------------------ */

static int is_copy(const table *jobs, int64_t job) {
  return jobs->field[PIPELINE][job] < 0 && jobs->field[DESTINATION][job] != 0;
}

/* Whether a job copies the same bytes as the one before. */
static int is_again(const table *jobs, int64_t job) {
  return is_copy(jobs, job) && is_copy(jobs, job - 1) && jobs->field[OFFSET][job] == jobs->field[OFFSET][job - 1] &&
         jobs->field[SIZE][job] == jobs->field[SIZE][job - 1] &&
         jobs->field[FILE_DESCRIPTOR][job] == jobs->field[FILE_DESCRIPTOR][job - 1];
}

/* Returns the end of the jobs that are read together with job `first`, which is followed by others close behind. */
static int64_t joined(const table *jobs, int64_t first, int64_t stop, int64_t *end) {
  const int64_t *file = jobs->field[FILE_DESCRIPTOR], *offset = jobs->field[OFFSET], *size = jobs->field[SIZE];
  int64_t at = first + 1;
  *end = offset[first] + size[first];
  if (file[first] == IN_MEMORY) return at;
  for (; at < stop && file[at] == file[first] && jobs->field[PIPELINE][at] != IN_PYTHON; at++) {
    int raw = is_copy(jobs, at);
    int64_t gap = offset[at] - *end, most = raw ? ROW_GAP : CHUNK_GAP, limit = raw ? ROW_GAP : SPAN_BYTES / 4;
    if (size[at] < ROW_GAP && is_again(jobs, at)) continue;
    if (gap < 0 || gap > most || size[at] >= limit || offset[at] - offset[first] >= SPAN_BYTES) break;
    if (raw && size[first] >= ROW_GAP) break; /* a row this large is read straight into its place */
    *end = offset[at] + size[at];
  }
  return at;
}

/* Gives hints about the jobs from `next` to `total`, as far as reads ahead go. `counts` says how far they are given, and
 * `ahead` how many bytes that is. */
static void give_hints(const table *jobs, int64_t next, int64_t total, int64_t *ahead, int64_t *counts, int64_t *times) {
#if defined(POSIX_FADV_WILLNEED)
  const int64_t *file = jobs->field[FILE_DESCRIPTOR], *offset = jobs->field[OFFSET], *size = jobs->field[SIZE];
  int64_t *hinted = &counts[HINTED];
  if (!gives_hints(times)) return;
  if (*hinted < next) *hinted = next, *ahead = 0;
  while (*hinted < total && *hinted - next < AHEAD_READS && *ahead < AHEAD_BYTES && peek(&times[COLD_ON])) {
    int64_t job = (*hinted)++;
    if (file[job] < 0) continue; /* it is in memory, or read elsewhere */
    int64_t before = now();
    posix_fadvise((int)file[job], (off_t)offset[job], (off_t)size[job], POSIX_FADV_WILLNEED);
    int64_t took = now() - before;
    /* 0.3 us and 4 ns/KB if the page cache has the bytes, otherwise 1.3 us and 100 ns/KB (measured). */
    count_cold(times, took > 900 + size[job] / 40, size[job]);
    *ahead += size[job];
    counts[HINTS] += 1;
  }
#endif
}

/* Runs the jobs from `first` to `stop`, and returns the first one that was not begun. Hints are given about the jobs up
 * to `total`; `counts` says how far. */
static int64_t run_jobs(context *of, const table *jobs, int64_t first, int64_t stop, int64_t total, int8_t *status,
                        int64_t *counts, int64_t *times) {
  int64_t *hinted = &counts[HINTED];
  const int64_t *file = jobs->field[FILE_DESCRIPTOR], *offset = jobs->field[OFFSET], *size = jobs->field[SIZE];
  int64_t began = now(), last = began, at = first, ahead = 0;
  while (at < stop) {
    if (last - began > SLICE_NS) break;
    if (file[at] == NO_DESCRIPTOR) {
      status[at++] = NOT_READ;
      continue;
    }
    if (jobs->field[PIPELINE][at] == IN_PYTHON) {
      status[at++] = NOT_RUN;
      continue;
    }
    if (at > first && status[at - 1] == DONE && is_again(jobs, at)) { /* a row that was asked for several times */
      memmove((void *)(intptr_t)jobs->field[DESTINATION][at], (void *)(intptr_t)jobs->field[DESTINATION][at - 1],
             (size_t)size[at]);
      status[at++] = DONE;
      continue;
    }
    int64_t end, next = joined(jobs, at, stop, &end), nbytes = end - offset[at];
    if (gives_hints(times)) {
      give_hints(jobs, next, total, &ahead, counts, times);
      ahead = ahead > nbytes ? ahead - nbytes : 0;
    }
    int alone = next == at + 1 && jobs->field[PIPELINE][at] < 0;
    uint8_t *place_of = (uint8_t *)(intptr_t)jobs->field[DESTINATION][at];
    uint8_t *to = alone && place_of != NULL ? place_of : NULL;
    const uint8_t *stored = NULL;
    if (to == NULL && file[at] == IN_MEMORY)
      stored = (const uint8_t *)(intptr_t)offset[at];
    else if (to == NULL)
      to = room(of, STORED, nbytes);
    int found = 1;
    if (stored == NULL) {
      int64_t before = now();
      found = to != NULL && read_at(file[at], offset[at], nbytes, to);
      last = now();
      if (file[at] != IN_MEMORY) {
        int64_t took = last - before;
        int was_hinted = *hinted > at, waited = took > 40000 + nbytes / 2;
        if (waited || !was_hinted) count_cold(times, waited, nbytes);
        counts[REQUESTS] += 1;
        counts[BYTES_READ] += nbytes;
      }
      stored = to;
    }
    for (int64_t job = at; job < next; job++) {
      if (!found)
        status[job] = NOT_READ;
      else
        status[job] = place(of, jobs, job, stored + (offset[job] - offset[at]), counts) ? DONE : NOT_DECODED;
    }
    at = next;
    if (jobs->field[PIPELINE][at - 1] >= 0) last = now();
  }
  return at;
}

/* ---- threads that share the jobs of a table --------------------------------------------------------------------- */

/* A table that waits in a pool, or is run there. */
typedef struct task {
  const table *jobs;
  int64_t next, stop, running; /* the first job that nobody has begun; how many threads run jobs */
  int8_t *status;
  int64_t *counts, *times;
  int64_t number;
  struct task *later;
} task;

/* Threads that run tables together: those that gave them, and helpers, which never need Python's lock. All of them run
 * jobs of the first table that has some left, so that it is done soon, and the next one begins where it ends. So few
 * threads of Python plan for many; each of the many would wait for the lock most of the time. */
struct pool {
  pthread_mutex_t lock;
  pthread_cond_t given, freed; /* helpers wait for a table; who gave one, until it is done or there is a turn to run jobs */
  task *first;
  int ends;
  int64_t most, running; /* how many threads run jobs, at most and now */
  int64_t helpers;
  pthread_t *ids;
  pid_t process; /* a fork has no helpers */
};

/* Returns the end of the jobs that one thread runs next: those of so many bytes. */
static int64_t slice_end(const table *jobs, int64_t first, int64_t stop) {
  int64_t at = first;
  for (int64_t nbytes = 0; at < stop && nbytes < SLICE_BYTES; at++)
    nbytes += jobs->field[SIZE][at] > jobs->field[DECODED][at] ? jobs->field[SIZE][at] : jobs->field[DECODED][at];
  return at;
}

/* Returns up to which job the thread that runs those up to `stop` gives hints: others do not give them again. */
static int64_t hints_end(const task *of, int64_t stop) {
  int64_t at = of->counts[HINTED], ahead = 0;
  if (!gives_hints(of->times)) return at;
  for (int64_t job = stop; job < at; job++) ahead += of->jobs->field[SIZE][job];
  for (; at < of->stop && at - stop < AHEAD_READS && ahead < AHEAD_BYTES; at++)
    if (at >= stop) ahead += of->jobs->field[SIZE][at];
  return at;
}

static int has_part(const pool *of) {
  return of->first != NULL && of->running < of->most;
}

static int is_done(const task *of) {
  return of->next == of->stop && of->running == 0;
}

/* Runs a part of the first table. The lock is held before and after. */
static void run_part(pool *of, context *mine) {
  task *table = of->first;
  int64_t first = table->next, stop = slice_end(table->jobs, first, table->stop);
  int64_t counts[COUNTS] = {0}, hints = hints_end(table, stop);
  counts[HINTED] = table->counts[HINTED];
  table->counts[HINTED] = hints;
  table->next = stop;
  if (stop == table->stop) of->first = table->later;
  table->running++;
  of->running++;
  pthread_mutex_unlock(&of->lock);
  while (first < stop) first = run_jobs(mine, table->jobs, first, stop, hints, table->status, counts, table->times);
  pthread_mutex_lock(&of->lock);
  of->running--;
  table->running--;
  for (int i = 0; i < HINTED; i++) table->counts[i] += counts[i];
  if (is_done(table)) pthread_cond_broadcast(&of->freed);
}

/* Lets another thread run jobs instead of this one, which leaves. */
static void hand_over(pool *of) {
  if (!has_part(of)) return;
  pthread_cond_signal(&of->given);
  pthread_cond_signal(&of->freed);
}

/* Waits until somebody gives a table. Returns 0 after so many nanoseconds without one; if they are negative, never. */
static int is_given(pool *of, int64_t most) {
  if (most < 0) return pthread_cond_wait(&of->given, &of->lock) == 0;
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  int64_t at = until.tv_nsec + most;
  until.tv_sec += (time_t)(at / 1000000000);
  until.tv_nsec = (long)(at % 1000000000);
  return pthread_cond_timedwait(&of->given, &of->lock, &until) != ETIMEDOUT;
}

/* Runs jobs of the tables in the pool of a context until the pool ends, or until there were none for so many nanoseconds,
 * if they are not negative. */
void ray_h5_help(context *mine, int64_t idle) {
  pool *of = mine->pool;
  if (of == NULL) return;
  pthread_mutex_lock(&of->lock);
  while (!of->ends) {
    if (has_part(of)) {
      run_part(of, mine);
      continue;
    }
    shrink(mine, KEPT_BYTES);
    if (!is_given(of, idle) && of->first == NULL) break;
  }
  hand_over(of);
  pthread_mutex_unlock(&of->lock);
  shrink(mine, KEPT_BYTES);
}

static void *helper(void *given) {
  ray_h5_help(given, -1);
  ray_h5_free(given);
  return NULL;
}

/* Lets nobody help any more. Who gave a table runs it alone. */
void ray_h5_end_pool(pool *of) {
  if (of->process != getpid()) return; /* a helper may have had the lock when the process was forked */
  pthread_mutex_lock(&of->lock);
  of->ends = 1;
  pthread_cond_broadcast(&of->given);
  pthread_mutex_unlock(&of->lock);
}

/* Ends a pool in which nobody is. */
void ray_h5_free_pool(pool *of) {
  if (of->process == getpid()) {
    ray_h5_end_pool(of);
    for (int64_t i = 0; i < of->helpers; i++) pthread_join(of->ids[i], NULL);
    pthread_cond_destroy(&of->given);
    pthread_cond_destroy(&of->freed);
    pthread_mutex_destroy(&of->lock);
  }
  free(of->ids);
  free(of);
}

/* Returns a pool in which so many threads run jobs at one time, with helpers, or as many of them as the system gives;
 * NULL if there is no memory. */
pool *ray_h5_pool(const codecs *given, int64_t most, int64_t helpers) {
  pool *made = calloc(1, sizeof *made);
  if (made == NULL) return NULL;
  made->most = most;
  made->process = getpid();
  made->ids = calloc((size_t)(helpers > 0 ? helpers : 1), sizeof *made->ids);
  pthread_mutex_init(&made->lock, NULL);
  pthread_cond_init(&made->given, NULL);
  pthread_cond_init(&made->freed, NULL);
  sigset_t all, before; /* signals are for the threads of Python */
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  while (made->ids != NULL && made->helpers < helpers) {
    context *its = ray_h5_context(given);
    if (its != NULL) its->pool = made;
    if (its == NULL || pthread_create(&made->ids[made->helpers], NULL, helper, its) != 0) {
      ray_h5_free(its);
      break;
    }
    made->helpers++;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return made;
}

/* Lets the thread that has a context run jobs in a pool from now on; alone if it is NULL. */
void ray_h5_use_pool(context *of, pool *used, int64_t number) {
  of->pool = used;
  of->number = number;
}

/* Gives a table to a pool, and runs jobs there until it is done, or for a while. Its first bytes arrive while those of
 * others are read. `given->stop` is then the first job that was not begun. */
static void run_in_pool(pool *in, context *mine, task *given) {
  int64_t ahead = 0, began = now();
  give_hints(given->jobs, given->next, given->stop, &ahead, given->counts, given->times);
  pthread_mutex_lock(&in->lock);
  task **at = &in->first;
  while (*at != NULL && (*at)->number <= given->number) at = &(*at)->later;
  given->later = *at;
  *at = given;
  pthread_cond_broadcast(&in->given);
  while (!is_done(given)) {
    if (given->next < given->stop && now() - began > SLICE_NS) {
      for (at = &in->first; *at != given;) at = &(*at)->later;
      *at = given->later;
      given->stop = given->next;
    } else if (has_part(in))
      run_part(in, mine);
    else
      pthread_cond_wait(&in->freed, &in->lock);
  }
  hand_over(in);
  pthread_mutex_unlock(&in->lock);
}

/* As `run_jobs`, by all threads of the context's pool. The arrays are `array_count` addresses and sizes.
 * Returns -1, and runs nothing, if a job reads or writes outside of them. */
int64_t ray_h5_run(context *of, const int64_t *job_table, int64_t jobs_stride, const int64_t *piece_table,
                   int64_t pieces_stride, const int64_t *pipelines, const int64_t *boxes, const int64_t *bounds,
                   int64_t array_count, int64_t first, int64_t stop, int8_t *status, int64_t *counts, int64_t *times) {
  table jobs = {.pieces = pieces_stride, .pipelines = pipelines, .boxes = boxes};
  arrays inside = {bounds, array_count};
  for (int i = 0; i < JOB_FIELDS; i++) jobs.field[i] = job_table + i * jobs_stride;
  for (int i = 0; i < PIECE_FIELDS; i++) jobs.piece[i] = piece_table + i * pieces_stride;
  if (!are_inside(&jobs, &inside, first, stop)) return -1;
  if (of->pool != NULL && slice_end(&jobs, first, stop) < stop) { /* else it is not worth it to wake a thread */
    task given = {&jobs, first, stop, 0, status, counts, times, .number = of->number};
    run_in_pool(of->pool, of, &given);
    shrink(of, KEPT_BYTES);
    return given.stop;
  }
  int64_t at = run_jobs(of, &jobs, first, stop, stop, status, counts, times);
  shrink(of, KEPT_BYTES);
  return at;
}

/* ---- rows of columns of which each row is one job --------------------------------------------------------------- */

/* A row: its job in the first column, its file and place. */
typedef struct {
  int64_t job, file, row, place;
} asked;

static int by_job(const void *one, const void *other) {
  int64_t a = ((const asked *)one)->job, b = ((const asked *)other)->job;
  return (a > b) - (a < b);
}

/* Fills a table of jobs, of `columns` times `count`, with those of some rows, in the order of the files. A row is read by
 * job `first[column * files + file] + row` of `all`, in which the fields of a job lie side by side; it has `total` jobs.
 * Place i of a column begins at `arrays[column]` plus i times `row_bytes[column]`. Returns 0 if there is no memory or no
 * such row, or if a row is asked for twice that has to be decoded. */
int ray_h5_plan_rows(const int64_t *all, int64_t total, const int64_t *first, int64_t files, int64_t columns,
                     const int64_t *row_bytes, const int64_t *arrays, const int64_t *file, const int64_t *row,
                     const int64_t *place_of, int64_t count, int64_t *jobs) {
  asked *rows = malloc((size_t)(count > 0 ? count : 1) * sizeof *rows);
  if (rows == NULL) return 0;
  int ascends = 1, alone = 1;
  for (int64_t i = 0; i < count; i++) {
    rows[i] = (asked){first[file[i]] + row[i], file[i], row[i], place_of[i]};
    if (i > 0 && rows[i].job < rows[i - 1].job) ascends = 0;
  }
  if (!ascends) qsort(rows, (size_t)count, sizeof *rows, by_job);
  for (int64_t column = 0; alone && column < columns; column++) {
    const int64_t *begins = first + column * files;
    for (int64_t i = 0; i < count; i++) {
      int64_t *job = jobs + column * count + i;
      int64_t number = begins[rows[i].file] + rows[i].row;
      if (number < 0 || number >= total) {
        alone = 0;
        break;
      }
      const int64_t *found = all + number * JOB_FIELDS;
      if (i > 0 && rows[i].job == rows[i - 1].job && found[PIPELINE] != RAW) alone = 0; /* it would be decoded twice */
      for (int field = 0; field < JOB_FIELDS; field++) job[field * columns * count] = found[field];
      job[DESTINATION * columns * count] = arrays[column] + rows[i].place * row_bytes[column];
    }
  }
  free(rows);
  return alone;
}

/* ---- lists of chunks ------------------------------------------------------------------------------------------ */

/* Chunks that libhdf5 lists: for each its corner, filter mask, address and size; the same struct is in
 * `ray_h5.read.native.chunk_lister`. */
typedef struct {
  int64_t axes, most_bytes, most_unwritten; /* of a damaged index, which may list chunks without end */
  int64_t count, bytes, unwritten, room, stopped;
  uint64_t *rows;
} chunk_list;

/* Returns 1 if the chunk was added to the list. */
static int add_chunk(chunk_list *list, const uint64_t *corner, unsigned mask, uint64_t address, uint64_t size) {
  uint64_t nbytes = size > 0 ? size : 1;
  if (nbytes > (uint64_t)(list->most_bytes - list->bytes)) return 0;
  size_t words = (size_t)list->axes + 3;
  if (list->count == list->room) {
    int64_t room = list->room > 0 ? 2 * list->room : 64;
    uint64_t *rows = realloc(list->rows, (size_t)room * words * sizeof *rows);
    if (rows == NULL) return 0;
    list->rows = rows;
    list->room = room;
  }
  list->bytes += (int64_t)nbytes;
  uint64_t *row = list->rows + (size_t)list->count++ * words;
  memcpy(row, corner, (size_t)list->axes * sizeof *row);
  row += list->axes;
  row[0] = mask;
  row[1] = address;
  row[2] = size;
  return 1;
}

/* H5Dchunk_iter of libhdf5 calls this with each chunk. Returns 1 to stop: Python finds out why. libhdf5 does not return
 * it for each kind of index, so the list says it, too. */
int ray_h5_list_chunk(const uint64_t *corner, unsigned mask, uint64_t address, uint64_t size, void *given) {
  chunk_list *list = given;
  if (address == UINT64_MAX ? ++list->unwritten > list->most_unwritten : !add_chunk(list, corner, mask, address, size))
    list->stopped = 1;
  return (int)list->stopped;
}

void ray_h5_free_list(chunk_list *list) {
  free(list->rows);
  list->rows = NULL;
}

/* ---- rows of sparse matrices ---------------------------------------------------------------------------------- */

/* Row by row: a row stays in the cache of the processor from its zeros to its entries. */
#define SCATTER(index, value)                                            \
  for (; row < rows; row++) {                                            \
    int64_t start = starts[row], stop = stops[row], before = -1;         \
    if (start < 0 || stop < start || stop > count) return row;           \
    value *to = (value *)out + row * width;                              \
    if (!is_zero) memset(to, 0, (size_t)width * sizeof(value));          \
    for (int64_t i = start; i < stop; i++) {                             \
      int64_t at = ((const index *)indices)[i];                          \
      if (at <= before || at >= width) return row;                       \
      to[at] = ((const value *)data)[i];                                 \
      before = at;                                                       \
    }                                                                    \
  }                                                                      \
  return rows

#define SCATTER_ANY(value)                   \
  if (wide) {                                \
    SCATTER(int64_t, value);                 \
  } else {                                   \
    SCATTER(int32_t, value);                 \
  }

/* Makes rows of a sparse matrix dense, from `row` on. Row i has the entries from `starts[i]` to `stops[i]`, of `count`;
 * `out` has `width` values of `item` bytes for each, which are zero if `is_zero`. Positions are int32, or int64 if `wide`.
 * Returns the first row that was not made: its positions do not ascend, repeat, or are outside, or it has entries that
 * are not there; `rows` if all were made. */
int64_t ray_h5_dense(int64_t row, int64_t rows, const int64_t *starts, const int64_t *stops, int64_t count,
                     const void *indices, int wide, const void *data, int64_t item, int64_t width, void *out,
                     int is_zero) {
  if (item == 4) {
    SCATTER_ANY(uint32_t);
  } else if (item == 8) {
    SCATTER_ANY(uint64_t);
  } else if (item == 2) {
    SCATTER_ANY(uint16_t);
  } else if (item == 1) {
    SCATTER_ANY(uint8_t);
  }
  return row;
}
