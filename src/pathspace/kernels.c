/* Passes over matrices of weights, each as one loop: see native.py, which compiles and calls them.

   Torch's operations read and write memory once each. A step of G-SGD is eight of them, so for large
   layers it costs several times what one pass costs. Nothing here knows what the numbers mean.

   The file includes itself: first for float, then for double. */

#ifndef REAL

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK 2048 /* columns at a time: some vectors of so many stay in the first-level cache */
#define AHEAD 8    /* rows: how long it takes until something is in the cache */
#define AT_ONCE 32 /* single numbers that are on their way into the cache */
#define MOST_THREADS 256 /* of a pass that keeps a number for each */
#define FLUSH 64   /* rows that are added up before their sum is added in double precision */

typedef void (*Parallel)(void (*)(void *), void *, unsigned, unsigned);
typedef int (*Number)(void);

static Parallel parallel; /* OpenMP as torch has it loaded; its threads are used, none are made */
static Number thread_number, thread_count;

void use_threads(void *run, void *number, void *count) {
  parallel = (Parallel)run;
  thread_number = (Number)number;
  thread_count = (Number)count;
}

/* Some of the work: that of one thread. */
typedef struct {
  int64_t first, last;
} Range;

static Range share(int64_t all, int number, int count) {
  return (Range){all * number / count, all * (number + 1) / count};
}

/* Call work(task, number, count) on all threads. */
typedef struct {
  void (*work)(void *, int, int);
  void *task;
} Call;

static void enter(void *call) {
  Call *it = call;
  it->work(it->task, thread_number(), thread_count());
}

static void on_threads(void (*work)(void *, int, int), void *task, int threads) {
  Call call = {work, task};
  if (threads > 1 && parallel)
    parallel(enter, &call, (unsigned)threads, 0);
  else
    work(task, 0, 1);
}

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

#define SIZE(w) ((w) < 0 ? -(w) : (w))
#define SQUARE(w) ((w) * (w))
#define FOURTH(w) (SQUARE(w) * SQUARE(w))

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define NAME(name) JOIN(name, SUFFIX)

#define REAL float
#define EXP expf
#define POW powf
#define SQRT sqrtf
#define SUFFIX _float32
#include "kernels.c"
#undef REAL
#undef EXP
#undef POW
#undef SQRT
#undef SUFFIX
#define REAL double
#define EXP exp
#define POW pow
#define SQRT sqrt
#define SUFFIX _float64
#include "kernels.c"

#else

/* A number per entry of a matrix: entry (i, j) is at[i * row + j * column], column 0 or 1; 1 without
   memory. */
typedef struct {
  const REAL *at;
  int64_t row, column;
} NAME(Factor);

/* The part of it that is common to the entries of a row from some column on, and all else of it. */
typedef struct {
  REAL common;
  const REAL *each;
} NAME(Part);

static REAL NAME(ones)[CHUNK];

static NAME(Part) NAME(part)(const NAME(Factor) * factor, int64_t i, int64_t j) {
  if (!factor->at) return (NAME(Part)){1, NAME(ones)};
  const REAL *start = factor->at + i * factor->row;
  return factor->column ? (NAME(Part)){1, start + j} : (NAME(Part)){*start, NAME(ones)};
}

/* Put the one first that is not the same for all entries, if only one is. */
static void NAME(sort)(NAME(Part) * first, NAME(Part) * second) {
  const NAME(Part) kept = *first;
  if (first->each == NAME(ones)) *first = *second, *second = kept;
}

static void NAME(prepare)(void) {
  for (int j = 0; j < CHUNK; j++) NAME(ones)[j] = 1;
}

/* w <- back (w - rate scale (sign g + (decay + penalty) w)), with two factors each. Apart are
   single entries: row i has those with the numbers start[i] to start[i + 1], whose columns are in
   order; for entry k back is own[owner[k]], scale is own_scale[owner[k]], and penalty is 0. */
typedef struct {
  REAL *weight;
  const REAL *gradient;
  int64_t rows, columns;
  double rate, sign, decay;
  NAME(Factor) scale[2], penalty[2], back[2];
  const int64_t *start, *apart, *owner;
  const REAL *own, *own_scale;
} NAME(Step);

typedef struct {
  const NAME(Step) * jobs;
  int64_t count;
} NAME(Steps);

static void NAME(step_run)(const NAME(Step) * job, int64_t i, int64_t j, int64_t n) {
  REAL *restrict w = job->weight + i * job->columns + j;
  const REAL *restrict g = job->gradient + i * job->columns + j;
  NAME(Part) s = NAME(part)(&job->scale[0], i, j), t = NAME(part)(&job->scale[1], i, j);
  NAME(Part) a = NAME(part)(&job->back[0], i, j), b = NAME(part)(&job->back[1], i, j);
  NAME(Part) p = NAME(part)(&job->penalty[0], i, j), q = NAME(part)(&job->penalty[1], i, j);
  NAME(sort)(&s, &t);
  NAME(sort)(&a, &b);
  NAME(sort)(&p, &q);
  const double scale = job->rate * s.common * t.common;
  const REAL of_g = (REAL)(scale * job->sign), of_w = (REAL)(scale * job->decay);
  const REAL of_p = (REAL)(scale * p.common * q.common), back = (REAL)((double)a.common * b.common);
#define LOOP(x, last_of_scale, last_of_back)                                     \
  _Pragma("omp simd")                                                            \
  for (int64_t k = 0; k < n; k++)                                                \
    w[k] = (w[k] - (x) * s.each[k] last_of_scale) * (back * a.each[k] last_of_back);
#define LOSS (of_g * g[k] + of_w * w[k])
  /* What is not read costs nothing. */
  const int single = t.each == NAME(ones) && b.each == NAME(ones) && q.each == NAME(ones);
  if (!job->penalty[0].at && !job->penalty[1].at) {
    if (single)
      LOOP(LOSS, , )
    else
      LOOP(LOSS, *t.each[k], *b.each[k])
  } else if (single)
    LOOP(w[k] * of_p * p.each[k] + LOSS, , )
  else
    LOOP(w[k] * of_p * p.each[k] * q.each[k] + LOSS, *t.each[k], *b.each[k])
#undef LOSS
#undef LOOP
}

static REAL NAME(step_one)(const NAME(Step) * job, int64_t owner, REAL w, REAL g) {
  const double gradient = job->sign * g + job->decay * w;
  return (REAL)((w - job->rate * job->own_scale[owner] * gradient) * job->own[owner]);
}

/* One row from a column to another, in chunks; what is apart is put back and stepped by itself. */
static void NAME(step_row)(const NAME(Step) * job, int64_t i, Range range) {
  REAL kept[CHUNK], *w = job->weight + i * job->columns;
  const REAL *g = job->gradient + i * job->columns;
  int64_t next = job->start ? job->start[i] : 0, end = job->start ? job->start[i + 1] : 0;
  while (next < end && job->apart[next] < range.first) next++;
  for (int64_t j = range.first; j < range.last; j += CHUNK) {
    const int64_t n = least(CHUNK, range.last - j), first = next;
    for (; next < end && job->apart[next] < j + n; next++) kept[next - first] = w[job->apart[next]];
    NAME(step_run)(job, i, j, n);
    for (int64_t k = first; k < next; k++)
      w[job->apart[k]] = NAME(step_one)(job, job->owner[k], kept[k - first], g[job->apart[k]]);
  }
}

/* The same from some row on. */
static NAME(Step) NAME(step_from)(const NAME(Step) * job, int64_t i) {
  NAME(Step) some = *job;
  some.weight += i * job->columns;
  some.gradient += i * job->columns;
  NAME(Factor) *factors[] = {some.scale, some.penalty, some.back};
  for (int k = 0; k < 6; k++)
    if (factors[k / 2][k % 2].at) factors[k / 2][k % 2].at += i * factors[k / 2][k % 2].row;
  if (job->start) some.start += i;
  return some;
}

static void NAME(step_share)(void *task, int number, int count) {
  const NAME(Steps) *all = task;
  for (int64_t k = 0; k < all->count; k++) {
    const NAME(Step) *job = all->jobs + k;
    Range rows = {0, job->rows}, columns = {0, job->columns};
    if (job->rows >= count)
      rows = share(job->rows, number, count);
    else
      columns = share(job->columns, number, count);
    for (int64_t i = rows.first; i < rows.last; i++) NAME(step_row)(job, i, columns);
  }
}

void NAME(step)(const NAME(Step) * jobs, int64_t count, int threads) {
  NAME(Steps) all = {jobs, count};
  NAME(prepare)();
  on_threads(NAME(step_share), &all, threads);
}

/* Sums over a matrix f: along its rows of f times a row, and over its rows of f times a column.

   f is sign w g + decay w^2 if there is g, else |w|^power, or w; 0 at entries that are apart (see
   above). With power -1 it is g. To `added`, w times scale, row and column is added where it is not
   apart; without any sums, f is not counted in the total. Into values goes (sign g + decay w) w of single entries, which are given by picks and picked
   as others are by start and apart. */
typedef struct {
  const REAL *weight, *gradient;
  REAL *added, *products;
  int64_t rows, columns, power;
  double sign, decay, scale;
  const REAL *row, *column;
  const int64_t *start, *apart, *picks, *picked;
  REAL *values, *along, *across;
  double *sums; /* room for all threads */
} NAME(Sums);

typedef struct {
  const NAME(Sums) * jobs;
  int64_t count;
  double *totals; /* by thread */
} NAME(AllSums);

static REAL NAME(sum_run)(const NAME(Sums) * job, int64_t i, int64_t j, int64_t n, REAL *over) {
  const REAL *restrict w = job->weight + i * job->columns + j;
  const REAL *restrict row = job->row ? job->row + j : NAME(ones);
  const REAL column = job->column ? job->column[i] : 1;
  REAL *restrict across = over;
  REAL total = 0;
#define LOOP(f, also)                               \
  _Pragma("omp simd reduction(+ : total)")          \
  for (int64_t k = 0; k < n; k++) {                 \
    const REAL x = f;                               \
    also;                                           \
    total += x * row[k];                            \
  }
#define ACROSS across[k] += x * column
  if (job->gradient) {
    const REAL *restrict g = job->gradient + i * job->columns + j;
    const REAL sign = (REAL)job->sign, decay = (REAL)job->decay;
    if (job->power < 0) {
      LOOP(g[k], )
      return total;
    }
    REAL *restrict products = job->products ? job->products + i * job->columns + j : NULL;
    if (products) {
      LOOP((sign * g[k] + decay * w[k]) * w[k], products[k] = x)
    } else if (across) {
      LOOP((sign * g[k] + decay * w[k]) * w[k], ACROSS)
    } else {
      LOOP((sign * g[k] + decay * w[k]) * w[k], )
    }
  } else if (job->added) {
    REAL *restrict g = job->added + i * job->columns + j;
    const REAL scale = (REAL)job->scale;
    if (across) {
      LOOP(SQUARE(w[k]), g[k] += w[k] * (row[k] * column) * scale; ACROSS)
    } else {
      LOOP(SQUARE(w[k]), g[k] += w[k] * (row[k] * column) * scale)
    }
  } else if (job->power == 0) {
    LOOP(w[k], )
  } else if (job->power == 1) {
    if (across) {
      LOOP(SIZE(w[k]), ACROSS)
    } else {
      LOOP(SIZE(w[k]), )
    }
  } else if (job->power == 2) {
    if (across) {
      LOOP(SQUARE(w[k]), ACROSS)
    } else {
      LOOP(SQUARE(w[k]), )
    }
  } else if (across) {
    LOOP(FOURTH(w[k]), ACROSS)
  } else {
    LOOP(FOURTH(w[k]), )
  }
#undef LOOP
#undef ACROSS
  return total;
}

/* Single entries of a row while it is in the cache. */
static void NAME(pick)(const NAME(Sums) * job, int64_t i, Range range) {
  const REAL sign = (REAL)job->sign, decay = (REAL)job->decay;
  for (int64_t k = job->picks[i]; k < job->picks[i + 1]; k++) {
    const int64_t j = job->picked[k], at = i * job->columns + j;
    const REAL w = job->weight[at];
    if (range.first <= j && j < range.last) job->values[k] = (sign * job->gradient[at] + decay * w) * w;
  }
}

/* Those of a later row; the weights between them may not be read at all. */
static void NAME(fetch)(const NAME(Sums) * job, int64_t i) {
  for (int64_t k = job->picks[i]; k < job->picks[i + 1]; k++)
    __builtin_prefetch(job->weight + i * job->columns + job->picked[k]);
}

/* |w|^power of four rows at once, so that the row and what is summed over rows are read once. */
static void NAME(sum_four)(const NAME(Sums) * job, int64_t i, Range range, REAL *recent,
                           double *totals) {
  for (int64_t j = range.first; j < range.last; j += CHUNK) {
    const int64_t n = least(CHUNK, range.last - j);
    const REAL *restrict w0 = job->weight + i * job->columns + j, *restrict w1 = w0 + job->columns;
    const REAL *restrict w2 = w1 + job->columns, *restrict w3 = w2 + job->columns;
    const REAL *restrict row = job->row ? job->row + j : NAME(ones);
    const REAL *column = job->column ? job->column + i : NAME(ones);
    const REAL c0 = column[0], c1 = column[1], c2 = column[2], c3 = column[3];
    REAL *restrict across = recent + j;
    REAL t0 = 0, t1 = 0, t2 = 0, t3 = 0;
#define LOOP(f, also)                                                  \
  _Pragma("omp simd reduction(+ : t0, t1, t2, t3)")                     \
  for (int64_t k = 0; k < n; k++) {                                    \
    const REAL x0 = f(w0[k]), x1 = f(w1[k]), x2 = f(w2[k]), x3 = f(w3[k]); \
    also;                                                              \
    t0 += x0 * row[k];                                                 \
    t1 += x1 * row[k];                                                 \
    t2 += x2 * row[k];                                                 \
    t3 += x3 * row[k];                                                 \
  }
#define ACROSS across[k] += (x0 * c0 + x1 * c1) + (x2 * c2 + x3 * c3)
    if (job->power == 1 && recent) {
      LOOP(SIZE, ACROSS)
    } else if (job->power == 1) {
      LOOP(SIZE, )
    } else if (job->power == 2 && recent) {
      LOOP(SQUARE, ACROSS)
    } else if (job->power == 2) {
      LOOP(SQUARE, )
    } else if (recent) {
      LOOP(FOURTH, ACROSS)
    } else {
      LOOP(FOURTH, )
    }
#undef LOOP
#undef ACROSS
    totals[0] += t0, totals[1] += t1, totals[2] += t2, totals[3] += t3;
  }
}

/* What is only added to, without any sums: in chunks, and what is apart is put back. */
static void NAME(add_row)(const NAME(Sums) * job, int64_t i, Range range) {
  REAL kept[CHUNK], *restrict added = job->added + i * job->columns;
  const REAL *restrict w = job->weight + i * job->columns;
  const REAL column = job->column ? job->column[i] : 1, scale = (REAL)job->scale;
  int64_t next = job->start ? job->start[i] : 0, end = job->start ? job->start[i + 1] : 0;
  while (next < end && job->apart[next] < range.first) next++;
  for (int64_t j = range.first; j < range.last; j += CHUNK) {
    const int64_t n = least(CHUNK, range.last - j), first = next;
    const REAL *restrict row = job->row ? job->row + j : NAME(ones);
    for (; next < end && job->apart[next] < j + n; next++) kept[next - first] = added[job->apart[next]];
    _Pragma("omp simd")
    for (int64_t k = 0; k < n; k++) added[j + k] += w[j + k] * (row[k] * column) * scale;
    for (int64_t k = first; k < next; k++) added[job->apart[k]] = kept[k - first];
  }
}

/* One row from a column to another, in chunks and around what is apart. */
static double NAME(sum_row)(const NAME(Sums) * job, int64_t i, Range range, REAL *across) {
  double total = 0;
  int64_t next = job->start ? job->start[i] : 0, end = job->start ? job->start[i + 1] : 0;
  while (next < end && job->apart[next] < range.first) next++;
  for (int64_t j = range.first; j < range.last;) {
    const int64_t stop = next < end ? least(job->apart[next], range.last) : range.last;
    for (int64_t n; j < stop; j += n) {
      n = least(CHUNK, stop - j);
      total += (double)NAME(sum_run)(job, i, j, n, across ? across + j : NULL);
    }
    if (stop < range.last) j++, next++;
  }
  return total;
}

static void NAME(flush)(REAL *recent, double *sums, Range columns) {
  for (int64_t j = columns.first; j < columns.last; j++) {
    sums[j] += recent[j];
    recent[j] = 0;
  }
}

/* What one thread keeps of a job: sums over rows in double precision and those of the last rows, and
   sums along rows where others have parts of these rows too. */
typedef struct {
  double *across, *along;
  REAL *recent;
} NAME(Own);

static int64_t NAME(room)(const NAME(Sums) * job) {
  return (job->across ? 2 * job->columns : 0) + (job->along ? job->rows : 0);
}

static NAME(Own) NAME(own)(const NAME(Sums) * job, int number) {
  double *start = job->sums + number * NAME(room)(job);
  double *recent = start + (job->across ? job->columns : 0);
  double *along = recent + (job->across ? job->columns : 0);
  return (NAME(Own)){start, along, (REAL *)recent};
}

/* By rows where there are enough of them, else by columns. */
static void NAME(sum_share)(void *task, int number, int count) {
  const NAME(AllSums) *all = task;
  double sum = 0;
  for (int64_t k = 0; k < all->count; k++) {
    const NAME(Sums) *job = all->jobs + k;
    const NAME(Own) own = NAME(own)(job, number);
    const int by_row = job->rows >= count;
    Range rows = {0, job->rows}, columns = {0, job->columns};
    if (by_row)
      rows = share(job->rows, number, count);
    else
      columns = share(job->columns, number, count);
    int64_t i = rows.first;
    if (job->power > 0 && !job->gradient && !job->added && !job->start)
      for (; i + 4 <= rows.last; i += 4) {
        double totals[4] = {0, 0, 0, 0};
        NAME(sum_four)(job, i, columns, job->across ? own.recent : NULL, totals);
        for (int k = 0; k < 4; k++) {
          sum += totals[k];
          if (job->along) own.along[i + k] = totals[k];
        }
        if (job->across && ((i + 4 - rows.first) % FLUSH == 0 || i + 4 == rows.last))
          NAME(flush)(own.recent, own.across, columns);
      }
    const int is_only_added = job->added && !job->along && !job->across;
    for (; is_only_added && i < rows.last; i++) NAME(add_row)(job, i, columns);
    for (; i < rows.last; i++) {
      const double total = NAME(sum_row)(job, i, columns, job->across ? own.recent : NULL);
      sum += total;
      if (job->picks) NAME(pick)(job, i, columns);
      if (job->picks && i + AHEAD < rows.last) NAME(fetch)(job, i + AHEAD);
      if (job->along) own.along[i] = total;
      if (job->across && ((i + 1 - rows.first) % FLUSH == 0 || i + 1 == rows.last))
        NAME(flush)(own.recent, own.across, columns);
    }
  }
  all->totals[number] = sum;
}

static void NAME(collect)(const NAME(Sums) * job, int threads) {
  const int64_t room = NAME(room)(job), behind = job->across ? 2 * job->columns : 0;
  for (int64_t j = 0; job->across && j < job->columns; j++) {
    double total = 0;
    for (int k = 0; k < threads; k++) total += job->sums[k * room + j];
    job->across[j] = (REAL)total;
  }
  for (int64_t i = 0; job->along && i < job->rows; i++) {
    double total = 0;
    for (int k = 0; k < threads; k++) total += job->sums[k * room + behind + i];
    job->along[i] = (REAL)total;
  }
}

/* 0, and the sum of all f; or 1 if there was no memory, and then nothing has changed. */
int NAME(sums)(NAME(Sums) * jobs, int64_t count, int threads, double *total) {
  int64_t size = 0;
  if (!parallel) threads = 1;
  for (int64_t k = 0; k < count; k++) size += NAME(room)(jobs + k);
  double *room = calloc((size_t)(threads * (size + 1)), sizeof(double));
  if (!room) return 1;
  double *next = room + threads;
  for (int64_t k = 0; k < count; k++) {
    jobs[k].sums = next;
    next += threads * NAME(room)(jobs + k);
  }
  NAME(AllSums) all = {jobs, count, room};
  NAME(prepare)();
  on_threads(NAME(sum_share), &all, threads);
  *total = 0;
  for (int k = 0; k < threads; k++) *total += room[k];
  for (int64_t k = 0; k < count; k++) NAME(collect)(jobs + k, threads);
  free(room);
  return 0;
}

/* x <- scale x^exponent for positive x, else 0; also where that is infinite. The sum of all before
   and the largest after it. */
typedef struct {
  double exponent, scale;
  double totals[MOST_THREADS], largest[MOST_THREADS];
} NAME(Powers);

static void NAME(raise_run)(NAME(Powers) * powers, int number, REAL *restrict x, int64_t n) {
  const REAL scale = (REAL)powers->scale, exponent = (REAL)powers->exponent;
  REAL most = 0, total = 0;
#define LOOP(f)                                               \
  _Pragma("omp simd reduction(max : most) reduction(+ : total)") \
  for (int64_t k = 0; k < n; k++) {                           \
    total += x[k];                                            \
    const REAL y = f;                                         \
    const REAL z = x[k] > 0 && y < INFINITY ? y * scale : 0;  \
    x[k] = z;                                                 \
    most = z > most ? z : most;                               \
  }
  if (exponent == -1)
    LOOP(1 / x[k])
  else if (exponent == (REAL)-0.5)
    LOOP(1 / SQRT(x[k]))
  else if (exponent == -2)
    LOOP(1 / (x[k] * x[k]))
  else
    LOOP(POW(x[k], exponent))
#undef LOOP
  powers->totals[number] += total;
  if (most > powers->largest[number]) powers->largest[number] = most;
}

static void NAME(collect_powers)(const NAME(Powers) * powers, double *total, double *largest) {
  *total = *largest = 0;
  for (int k = 0; k < MOST_THREADS; k++) {
    *total += powers->totals[k];
    *largest = powers->largest[k] > *largest ? powers->largest[k] : *largest;
  }
}

typedef struct {
  NAME(Powers) powers;
  REAL *values;
  int64_t count;
} NAME(Raise);

static void NAME(raise_share)(void *task, int number, int count) {
  NAME(Raise) *job = task;
  const Range range = share(job->count, number, count);
  for (int64_t k = range.first; k < range.last; k += CHUNK)
    NAME(raise_run)(&job->powers, number, job->values + k, least(CHUNK, range.last - k));
}

void NAME(raise)(REAL *values, int64_t count, int threads, double exponent, double scale,
                 double *total, double *largest) {
  NAME(Raise) job = {{exponent, scale, {0}, {0}}, values, count};
  on_threads(NAME(raise_share), &job, (int)least(threads, MOST_THREADS));
  NAME(collect_powers)(&job.powers, total, largest);
}

/* The sum, the smallest positive one and the largest of some numbers. */
void NAME(extremes)(const REAL *restrict x, int64_t count, double *found) {
  REAL total = 0, least_of_all = INFINITY, most = -INFINITY;
  _Pragma("omp simd reduction(+ : total) reduction(min : least_of_all) reduction(max : most)")
  for (int64_t k = 0; k < count; k++) {
    const REAL positive = x[k] > 0 ? x[k] : INFINITY;
    total += x[k];
    least_of_all = positive < least_of_all ? positive : least_of_all;
    most = x[k] > most ? x[k] : most;
  }
  found[0] = total, found[1] = least_of_all, found[2] = most;
}

/* Values, which are or belong to numbers by scale, and the scale of each; all of them, or those at
   some places. */
typedef struct {
  REAL *values;
  const int64_t *index, *place;
  int64_t count;
} NAME(Table);

/* All that is summed before a step: the sums of matrices, some of which are the values of a table;
   these by their index; and without the values of other tables. `total` is the sum of all f and of
   the sums by index, finite only if everything is. 1 if there was no memory. */
int NAME(look)(NAME(Sums) * jobs, int64_t count, int threads, double *total, REAL *sums,
               int64_t size, const NAME(Table) * added, const NAME(Table) * removed,
               int64_t tables) {
  if (NAME(sums)(jobs, count, threads, total)) return 1;
  memset(sums, 0, (size_t)size * sizeof(REAL));
  for (int64_t k = 0; k < added->count; k++) sums[added->index[k]] += added->values[k];
  for (int64_t k = 0; k < size; k++) *total += (double)sums[k];
  for (const NAME(Table) *table = removed; table < removed + tables; table++)
    for (int64_t k = 0; k < table->count; k++) {
      const int64_t place = table->place ? table->place[k] : k;
      sums[table->index[k]] -= table->values[place];
    }
  return 0;
}

/* The changes of roots are coefficient times slope, within a limit; they are given if there is no
   coefficient. Logarithms move with them: logs[k] = change[first[k]] of_first[k] +
   change[second[k]] of_second[k]. Behind the 3 size of them come power log_source, -power log_target
   and one 0, then power log_target and one -inf; both move with the logs of units, according to the
   side that a unit is moved by. Their exponentials go into the tables, and the scales of what leads
   to a child into own_scale, if that is there. */
typedef struct {
  const REAL *slope, *coefficient;
  double limit;
  const REAL *change;
  const int64_t *first, *second;
  const REAL *of_first, *of_second, *entered;
  int64_t size;
  double power;
  REAL *exponentials;
  double *log_source, *log_target;
  const int64_t *child;
  REAL *own_scale;
  NAME(Table) tables[2];
} NAME(Turn);

static REAL NAME(change)(const NAME(Turn) * turn, int64_t k) {
  if (!turn->coefficient) return turn->change[k];
  const REAL x = turn->slope[k] * turn->coefficient[k], limit = (REAL)turn->limit;
  return x > limit ? limit : x < -limit ? -limit : x;
}

static void NAME(turn_share)(void *task, int number, int count) {
  const NAME(Turn) *turn = task;
  const int64_t size = turn->size;
  const Range own = share(size, number, count);
  REAL *factor = turn->exponentials, *of_source = factor + 3 * size, *of_free = of_source + size;
  REAL *of_target = of_free + size + 1;
  for (int64_t k = own.first; k < own.last; k++) {
    const REAL moved = NAME(change)(turn, turn->first[k]) * turn->of_first[k];
    of_source[k] = EXP((REAL)(turn->power * turn->log_source[k]));
    of_free[k] = EXP((REAL)(-turn->power * turn->log_target[k]));
    of_target[k] = EXP((REAL)(turn->power * turn->log_target[k]));
    turn->log_source[k] += (double)(moved * (1 - turn->entered[k]));
    turn->log_target[k] += (double)(moved * turn->entered[k]);
    for (int64_t n = k; n < 3 * size; n += size) {
      const REAL first = NAME(change)(turn, turn->first[n]) * turn->of_first[n];
      const REAL log = first + NAME(change)(turn, turn->second[n]) * turn->of_second[n];
      factor[n] = log == 0 ? 1 : EXP(log);
    }
  }
}

static void NAME(fill_share)(void *task, int number, int count) {
  const NAME(Turn) *turn = task;
  for (const NAME(Table) *table = turn->tables; table < turn->tables + 2; table++) {
    const Range own = share(table->count, number, count);
    for (int64_t k = own.first; k < own.last; k++)
      table->values[k] = turn->exponentials[table->index[k]];
  }
  const REAL *of_free = turn->exponentials + 4 * turn->size, *of_target = of_free + turn->size + 1;
  const Range own = share(turn->own_scale ? turn->size : 0, number, count);
  for (int64_t k = own.first; k < own.last; k++)
    turn->own_scale[k] = of_free[k] * of_target[turn->child[k]];
}

void NAME(turn)(NAME(Turn) * turn, int threads) {
  turn->exponentials[5 * turn->size] = 1;
  turn->exponentials[6 * turn->size + 1] = 0;
  on_threads(NAME(turn_share), turn, threads);
  on_threads(NAME(fill_share), turn, threads);
}

/* to[row[k]] = from[index[k]], which may be anywhere in memory: many are fetched at once. */
typedef struct {
  const REAL *from;
  const int64_t *index, *row;
  int64_t count;
  double *to;
} NAME(Gather);

static void NAME(gather_share)(void *task, int number, int count) {
  const NAME(Gather) *job = task;
  const Range own = share(job->count, number, count);
  for (int64_t k = own.first; k < least(own.first + AT_ONCE, own.last); k++)
    __builtin_prefetch(job->from + job->index[k]);
  for (int64_t k = own.first; k < own.last; k++) {
    if (k + AT_ONCE < own.last) __builtin_prefetch(job->from + job->index[k + AT_ONCE]);
    job->to[job->row[k]] = (double)job->from[job->index[k]];
  }
}

void NAME(gather)(const REAL *from, const int64_t *index, const int64_t *row, int64_t count,
                  double *to, int threads) {
  NAME(Gather) job = {from, index, row, count, to};
  on_threads(NAME(gather_share), &job, threads);
}

#include "products.c"

#endif
