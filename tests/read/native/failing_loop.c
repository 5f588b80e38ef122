/* The loop, with calls for memory and reads that fail on request; see test_failing_calls.py. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

enum { MEMORY, READS, KINDS };

static int64_t left[KINDS] = {INT64_MAX, INT64_MAX}; /* calls before one that fails */
static int64_t last[KINDS] = {INT64_MIN, INT64_MIN}; /* after which they are well again: the same count, or without end */
static int64_t held; /* pieces of memory that were not freed */

static int fails(int kind) {
  int64_t at = __atomic_fetch_sub(&left[kind], 1, __ATOMIC_SEQ_CST);
  return at <= 0 && at >= last[kind];
}

static void *counted(void *found, const void *before) {
  if (found != NULL && before == NULL) __atomic_fetch_add(&held, 1, __ATOMIC_SEQ_CST);
  return found;
}

static void *failing_malloc(size_t size) {
  return fails(MEMORY) ? NULL : counted(malloc(size), NULL);
}

static void *failing_calloc(size_t count, size_t size) {
  return fails(MEMORY) ? NULL : counted(calloc(count, size), NULL);
}

static void *failing_realloc(void *before, size_t size) {
  return fails(MEMORY) ? NULL : counted(realloc(before, size), before);
}

static void counting_free(void *found) {
  if (found != NULL) __atomic_fetch_sub(&held, 1, __ATOMIC_SEQ_CST);
  free(found);
}

static ssize_t failing_pread(int file, void *to, size_t size, off_t offset) {
  if (!fails(READS)) return pread(file, to, size, offset);
  errno = EIO;
  return -1;
}

#define malloc failing_malloc
#define calloc failing_calloc
#define realloc failing_realloc
#define free counting_free
#define pread failing_pread
#include "../../../ray_h5/read/native/loop.c"

/* Lets a call fail after so many, or with `forever` all that follow. */
void fail_after(int kind, int64_t calls, int forever) {
  last[kind] = forever ? INT64_MIN : 0;
  left[kind] = calls;
}

/* Lets no call fail. Returns whether one did. */
int heal(int kind) {
  int did = left[kind] < 0;
  left[kind] = INT64_MAX;
  return did;
}

int64_t pieces_held(void) {
  return held;
}
