/* Several threads give tables to pools, with and without helpers, under ThreadSanitizer: all jobs are run once, and no
 * two threads touch the same memory without a lock. */
#include "../../../ray_h5/read/native/loop.c"

#include <stdio.h>

enum { JOBS = 400, TABLES = 24, GIVERS = 3, ROW = 20000 };

static int file_of_all;
static int64_t pipeline_of_all[PIPELINE_FIELDS];
static codecs none;
static int64_t times[TIMES];

static void *give(void *used) {
  context *mine = ray_h5_context(&none);
  int64_t(*jobs)[JOBS] = calloc(JOB_FIELDS, sizeof *jobs), wrong = 0;
  uint8_t *out = malloc((size_t)JOBS * ROW), *expected = malloc(ROW);
  int64_t bounds[] = {(int64_t)(intptr_t)expected, ROW, (int64_t)(intptr_t)out, (int64_t)JOBS * ROW};
  int8_t status[JOBS];
  for (int table = 0; table < TABLES; table++) {
    poke(&times[COLD_ON], table % 2);
    int count = 1 + (table * 37) % JOBS;
    ray_h5_use_pool(mine, used, TABLES - table);
    int64_t counts[COUNTS] = {0};
    for (int i = 0; i < count; i++) {
      jobs[FILE_DESCRIPTOR][i] = file_of_all;
      jobs[OFFSET][i] = (int64_t)((i * 7919 + table) % 300) * ROW;
      jobs[SIZE][i] = jobs[DECODED][i] = ROW;
      jobs[PIPELINE][i] = RAW;
      jobs[DESTINATION][i] = (int64_t)(intptr_t)(out + (int64_t)i * ROW);
    }
    memset(status, 9, sizeof status);
    int64_t at = 0;
    while (at >= 0 && at < count) /* a call returns early now and then */
      at = ray_h5_run(mine, &jobs[0][0], JOBS, NULL, 0, pipeline_of_all, NULL, bounds, 2, at, count, status, counts,
                      times);
    if (at != count || counts[BYTES_READ] != (int64_t)count * ROW) wrong++;
    for (int i = 0; i < count; i++) {
      if (status[i] != DONE || pread(file_of_all, expected, ROW, (off_t)jobs[OFFSET][i]) != ROW ||
          memcmp(expected, out + (int64_t)i * ROW, ROW) != 0)
        wrong++;
    }
  }
  ray_h5_free(mine);
  free(jobs);
  free(out);
  free(expected);
  return (void *)(intptr_t)wrong;
}

static void *assist(void *used) {
  context *mine = ray_h5_context(&none);
  ray_h5_use_pool(mine, used, 0);
  ray_h5_help(mine, 1000000);
  ray_h5_free(mine);
  return NULL;
}

int main(int argc, char **argv) {
  if (argc < 2 || (file_of_all = open(argv[1], O_RDONLY)) < 0) return 2;
  int64_t wrong = 0;
  const int64_t sizes[][2] = {{1, 0}, {2, 0}, {2, 1}, {2, 4}, {8, 5}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    pool *used = ray_h5_pool(&none, sizes[i][0], sizes[i][1]);
    pthread_t threads[GIVERS], others[GIVERS];
    for (int j = 0; j < GIVERS; j++) pthread_create(&threads[j], NULL, give, used);
    for (int j = 0; j < GIVERS; j++) pthread_create(&others[j], NULL, assist, used);
    usleep(10000);
    ray_h5_end_pool(used); /* while tables are run: who gave them goes on alone */
    for (int j = 0; j < GIVERS; j++) pthread_join(others[j], NULL);
    for (int j = 0; j < GIVERS; j++) {
      void *found;
      pthread_join(threads[j], &found);
      wrong += (int64_t)(intptr_t)found;
    }
    ray_h5_free_pool(used);
  }
  if (wrong) fprintf(stderr, "%lld jobs were not run, or not as asked\n", (long long)wrong);
  return wrong != 0;
}
