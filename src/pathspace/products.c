/* Convolutions of one image with powers of their weights, as products of matrices; kernels.c
   includes this for float and for double.

   A kernel is a matrix with one row per channel of the result and one column per entry of a window.
   The windows of an image are written down as a matrix, whose columns stand in panels of as many as
   are summed at once: what a product reads stands in a row. Powers are made of some entries at a
   time, which stay in the first-level cache, so the weights are read once by each product and no
   power of them is ever written to memory. Nor need the derivative by these powers be: some rows of
   it at a time are what a step of the weights is scaled by. */

#ifndef ROWS

#ifdef __AVX512F__
#define VECTOR 64 /* bytes */
#define ROWS 12   /* of a result that are summed at once, two vectors of each: as registers allow */
#else
#ifdef __AVX__
#define VECTOR 32
#else
#define VECTOR 16
#endif
#define ROWS 6
#endif

#define DEEP 256 /* columns of a kernel at a time */
#define GROUP 16 /* lines of memory that many numbers of them take in single precision */
#define HIGH 96  /* rows of it at a time; both are few enough for a cache */
#define WIDE 96

#endif

#define LANES ((int64_t)(VECTOR / sizeof(REAL)))
#define PANEL (2 * LANES) /* columns */

typedef REAL NAME(Vector) __attribute__((vector_size(VECTOR), aligned(sizeof(REAL)), may_alias));

/* A convolution in the plane of one image, and what is computed of it. */
typedef struct {
  const REAL *weight; /* (out, in * high * wide) */
  int64_t out, in, height, width, high, wide, down, across;
  int64_t stride[2], padding[2], dilation[2], power;
  const REAL *image;    /* (in, height, width) */
  const REAL *gradient; /* (out, down * across): by the result */
  REAL *result;         /* the convolution */
  REAL *to_image;       /* the derivative by the image */
  REAL *to_power;       /* that by the powers of the weight */
  REAL *room;           /* memory, as much as convolution_room says */
  double exponent, scale; /* to_power is raised, if the exponent is not 0: see raise_run */
  double total, largest;  /* its sum before that, and its largest entry after it */
  NAME(Powers) * powers;  /* set while it is needed */
  const NAME(Step) * step; /* of the weight, with to_power as a factor of its scale; it is not kept */
} NAME(Convolution);

/* In panels. */
static int64_t NAME(whole)(int64_t columns) { return (columns + PANEL - 1) / PANEL * PANEL; }

/* Where entry (row, column) is in panels of a matrix of so many rows. */
static int64_t NAME(at)(int64_t row, int64_t column, int64_t rows) {
  return (column / PANEL * rows + row) * PANEL + column % PANEL;
}

static int64_t NAME(window)(const NAME(Convolution) * job) { return job->in * job->high * job->wide; }
static int64_t NAME(places)(const NAME(Convolution) * job) { return job->down * job->across; }

/* Where windows meet a channel of the image with one of their entries, for some places from `first`
   on: in the padding, which is nowhere, or at one of its pixels. As are places that fill a panel. */
#define NOWHERE (-1)

static void NAME(pixels)(const NAME(Convolution) * job, int64_t y, int64_t x, int64_t first,
                         int64_t count, int64_t *pixel) {
  for (int64_t k = 0; k < NAME(whole)(count); k++) {
    const int64_t down = (first + k) / job->across, across = (first + k) % job->across;
    const int64_t row = down * job->stride[0] + y * job->dilation[0] - job->padding[0];
    const int64_t column = across * job->stride[1] + x * job->dilation[1] - job->padding[1];
    const int is_inside = 0 <= row && row < job->height && 0 <= column && column < job->width;
    pixel[k] = k < count && is_inside ? row * job->width + column : NOWHERE;
  }
}

/* Lines of memory that are wanted soon: the first ones of some groups of GROUP that are `along` apart,
   and these groups `far`; all of them by `next` further on for the next panel. */
typedef struct {
  const REAL *start;
  int64_t along, far, next;
} NAME(Soon);

#define LINE ((int64_t)(64 / sizeof(REAL)))

/* c (+)= a b for some rows and one or two vectors of the columns of a panel b; entry (i, k) of a is
   at a[i * row + k * step]. Only `columns` of c are there. One line that is wanted soon is fetched in
   every second step. */
#define STEP(R, V)                                                                     \
  {                                                                                    \
    const NAME(Vector) *from = (const NAME(Vector) *)b;                                \
    _Pragma("GCC unroll 16") for (int i = 0; i < R; i++) {                             \
      const REAL factor = a[i * row];                                                  \
      _Pragma("GCC unroll 2") for (int v = 0; v < V; v++) sums[i][v] += factor * from[v]; \
    }                                                                                  \
    a += step;                                                                         \
    b += PANEL;                                                                        \
  }
#define PRODUCT(R, V)                                                                             \
  static void NAME(JOIN(product_##R, _##V))(const REAL *a, int64_t row, int64_t step,             \
                                            const REAL *b, int64_t count, REAL *c, int64_t stride, \
                                            int64_t columns, int is_added, NAME(Soon) soon) {     \
    NAME(Vector) sums[R][V];                                                                      \
    _Pragma("GCC unroll 16") for (int i = 0; i < R; i++)                                          \
      _Pragma("GCC unroll 2") for (int v = 0; v < V; v++) sums[i][v] = (NAME(Vector)){0};         \
    for (int64_t k = 0; k + 1 < count; soon.start += soon.far) {                                  \
      const REAL *line = soon.start;                                                              \
      for (const int64_t last = least(k + 2 * GROUP, count - 1); k < last; k += 2) {              \
        __builtin_prefetch(line);                                                                 \
        line += soon.along;                                                                       \
        STEP(R, V)                                                                                \
        STEP(R, V)                                                                                \
      }                                                                                           \
    }                                                                                             \
    if (count % 2) STEP(R, V)                                                                     \
    if (columns == V * LANES)                                                                     \
      _Pragma("GCC unroll 16") for (int i = 0; i < R; i++)                                        \
        _Pragma("GCC unroll 2") for (int v = 0; v < V; v++) {                                     \
          NAME(Vector) *at = (NAME(Vector) *)(c + i * stride) + v;                                \
          if (is_added) sums[i][v] += *at;                                                        \
          *at = sums[i][v];                                                                       \
        }                                                                                         \
    else {                                                                                        \
      REAL some[R][V * LANES];                                                                    \
      _Pragma("GCC unroll 16") for (int i = 0; i < R; i++)                                        \
        _Pragma("GCC unroll 2") for (int v = 0; v < V; v++)                                       \
          ((NAME(Vector) *)some[i])[v] = sums[i][v];                                              \
      for (int i = 0; i < R; i++)                                                                 \
        for (int64_t j = 0; j < columns; j++)                                                     \
          c[i * stride + j] = is_added ? c[i * stride + j] + some[i][j] : some[i][j];             \
    }                                                                                             \
  }
#define PRODUCTS(R) PRODUCT(R, 1) PRODUCT(R, 2)
#if ROWS == 12
PRODUCTS(12)
#define MOST(V) NAME(JOIN(product_12, _##V))
#else
PRODUCTS(6)
#define MOST(V) NAME(JOIN(product_6, _##V))
#endif
PRODUCTS(4)
PRODUCTS(1)

/* The same for any number of columns, in panels that are as far apart as `apart` says, and at most
   ROWS rows. What is wanted soon are the columns of c that come next, if nothing else is. */
static void NAME(product)(const REAL *a, int64_t row, int64_t step, const REAL *b, int64_t apart,
                          int64_t count, REAL *c, int64_t stride, int64_t rows, int64_t columns,
                          int is_added, NAME(Soon) soon) {
  const NAME(Soon) given = soon;
  for (int64_t i = 0, n; i < rows; i += n) {
    n = rows - i == ROWS ? ROWS : rows - i >= 4 ? 4 : 1;
    for (int64_t j = 0; j < columns; j += PANEL) {
      const int64_t m = least(columns - j, PANEL);
      const REAL *panel = b + j / PANEL * apart;
      if (!given.start) soon = (NAME(Soon)){c + i * stride + j + m, stride, 0, 0};
#define CALL(f) f(a + i * row, row, step, panel, count, c + i * stride + j, stride, m, is_added, soon)
      if (n == ROWS && m > LANES) CALL(MOST(2));
      else if (n == ROWS) CALL(MOST(1));
      else if (n == 4 && m > LANES) CALL(NAME(product_4_2));
      else if (n == 4) CALL(NAME(product_4_1));
      else if (m > LANES) CALL(NAME(product_1_2));
      else CALL(NAME(product_1_1));
#undef CALL
      soon.start += given.next;
    }
    soon = given;
  }
}

/* How many of some rows are next: four where ROWS would leave two. */
static int64_t NAME(next)(int64_t rows) { return rows == ROWS + 2 && rows == 8 ? 4 : least(ROWS, rows); }

/* |w|^power of some rows and columns. */
static void NAME(powers)(const NAME(Convolution) * job, int64_t i, int64_t rows, int64_t j,
                         int64_t columns, REAL *to) {
  const int64_t all = NAME(window)(job);
  for (int64_t k = 0; k < rows; k++) {
    const REAL *restrict w = job->weight + (i + k) * all + j;
    REAL *restrict x = to + k * columns;
    if (job->power == 1)
      for (int64_t n = 0; n < columns; n++) x[n] = SIZE(w[n]);
    else if (job->power == 2)
      for (int64_t n = 0; n < columns; n++) x[n] = SQUARE(w[n]);
    else
      for (int64_t n = 0; n < columns; n++) x[n] = FOURTH(w[n]);
  }
}

/* Do something at every entry (y, x) of a window for some places at a time, as `pixels` has them. */
#define AT_PIXELS(job)                                                           \
  const int64_t places = NAME(places)(job), size = job->height * job->width;     \
  int64_t pixel[CHUNK];                                                          \
  for (int64_t y = 0; y < job->high; y++)                                        \
    for (int64_t x = 0; x < job->wide; x++)                                      \
      for (int64_t first = 0, n; first < places; first += n)                     \
        if (n = least(CHUNK, places - first), NAME(pixels)(job, y, x, first, n, pixel), 1)
#define ENTRY(job, c) (((c) * (job)->high + y) * (job)->wide + x)

/* The windows of some channels, in panels of the places, or of the entries of a window. */
static void NAME(unfold)(const NAME(Convolution) * job, Range channels, int by_entry, REAL *to) {
  const int64_t all = NAME(window)(job);
  AT_PIXELS(job)
    for (int64_t c = channels.first; c < channels.last; c++) {
      const REAL *restrict image = job->image + c * size;
#define PIXEL(k) (pixel[k] == NOWHERE ? 0 : image[pixel[k]])
      if (by_entry) {
        REAL *restrict start = to + NAME(at)(first, ENTRY(job, c), places);
        for (int64_t k = 0; k < n; k++) start[k * PANEL] = PIXEL(k);
      } else
        for (int64_t k = 0; k < n; k += PANEL) {
          REAL *restrict start = to + NAME(at)(ENTRY(job, c), first + k, all);
          for (int64_t i = 0; i < PANEL; i++) start[i] = PIXEL(k + i);
        }
#undef PIXEL
    }
  for (int64_t n = all; by_entry && channels.last == job->in && n % PANEL; n++)
    for (int64_t k = 0; k < places; k++) to[NAME(at)(k, n, places)] = 0;
}

/* The transpose of that: sums of numbers that stand in rows, one for every entry. */
static void NAME(fold)(const NAME(Convolution) * job, Range channels, const REAL *from) {
  const int64_t length = NAME(whole)(NAME(places)(job));
  memset(job->to_image + channels.first * job->height * job->width, 0,
         (size_t)((channels.last - channels.first) * job->height * job->width) * sizeof(REAL));
  AT_PIXELS(job)
    for (int64_t c = channels.first; c < channels.last; c++) {
      const REAL *restrict start = from + ENTRY(job, c) * length + first;
      REAL *restrict image = job->to_image + c * size;
      for (int64_t k = 0; k < n; k++)
        if (pixel[k] != NOWHERE) image[pixel[k]] += start[k];
    }
}

/* First what others read, then the products. */
static void NAME(unfold_share)(void *task, int number, int count) {
  const NAME(Convolution) *job = task;
  NAME(unfold)(job, share(job->in, number, count), 0, job->room);
}

static void NAME(convolve_share)(void *task, int number, int count) {
  const NAME(Convolution) *job = task;
  const int64_t all = NAME(window)(job), places = NAME(places)(job);
  const Range rows = share(job->out, number, count);
  REAL some[ROWS * DEEP];
  for (int64_t i = rows.first, n; i < rows.last; i += n) {
    n = NAME(next)(rows.last - i);
    for (int64_t j = 0; j < all; j += DEEP) {
      const int64_t m = least(DEEP, all - j), next = j + m < all ? i * all + j + m : (i + n) * all;
      const NAME(Soon) soon = {job->weight + next, LINE, all, 0};
      NAME(powers)(job, i, n, j, m, some);
      NAME(product)(some, m, 1, job->room + j * PANEL, all * PANEL, m, job->result + i * places,
                    places, n, places, j > 0, soon);
    }
  }
}

/* The same on the way back: behind the derivative by the windows come gradients and windows. */
static REAL *NAME(gradients)(const NAME(Convolution) * job) {
  return job->room + NAME(window)(job) * NAME(whole)(NAME(places)(job));
}
static REAL *NAME(windows)(const NAME(Convolution) * job) {
  return NAME(gradients)(job) + job->out * NAME(whole)(NAME(places)(job));
}

/* Behind these, some rows of to_power for every thread, where it is not kept. */
static REAL *NAME(passing)(const NAME(Convolution) * job, int number) {
  const int64_t all = NAME(window)(job);
  return NAME(windows)(job) + NAME(places)(job) * NAME(whole)(all) + number * ROWS * all;
}

static void NAME(list_share)(void *task, int number, int count) {
  const NAME(Convolution) *job = task;
  const int64_t places = NAME(places)(job);
  const Range rows = share(job->out, number, count);
  for (int64_t i = rows.first; job->to_image && i < rows.last; i++)
    for (int64_t k = 0; k < places; k += PANEL) {
      const int64_t n = least(PANEL, places - k);
      REAL *to = NAME(gradients)(job) + NAME(at)(i, k, job->out);
      memcpy(to, job->gradient + i * places + k, (size_t)n * sizeof(REAL));
      memset(to + n, 0, (size_t)(PANEL - n) * sizeof(REAL));
    }
  if (job->to_power || job->step) NAME(unfold)(job, share(job->in, number, count), 1, NAME(windows)(job));
}

static void NAME(back_share)(void *task, int number, int count) {
  const NAME(Convolution) *job = task;
  const int64_t all = NAME(window)(job), places = NAME(places)(job), length = NAME(whole)(places);
  if (job->to_power || job->step) {
    const Range rows = share(job->out, number, count);
    for (int64_t i = rows.first, n; i < rows.last; i += n) {
      n = NAME(next)(rows.last - i);
      REAL *found = job->step ? NAME(passing)(job, number) : job->to_power + i * all;
      NAME(Soon) soon = {0}; /* what is stepped then */
      if (job->step)
        soon = (NAME(Soon)){job->weight + i * all, all, job->step->gradient - job->weight, PANEL};
      NAME(product)(job->gradient + i * places, places, 1, NAME(windows)(job), places * PANEL, places,
                    found, all, n, all, 0, soon);
      for (int64_t k = 0; job->exponent && k < n * all; k += CHUNK) /* while it is in the cache */
        NAME(raise_run)(job->powers, number, found + k, least(CHUNK, n * all - k));
      if (!job->step) continue;
      NAME(Step) some = NAME(step_from)(job->step, i);
      some.scale[0] = (NAME(Factor)){found, all, 1};
      for (int64_t k = 0; k < n; k++) NAME(step_row)(&some, k, (Range){0, all});
    }
  }
  if (job->to_image) {
    const Range channels = share(job->in, number, count);
    const int64_t size = job->high * job->wide, last = channels.last * size;
    REAL some[HIGH * WIDE];
    for (int64_t i = 0; i < job->out; i += HIGH) {
      const int64_t n = least(HIGH, job->out - i);
      for (int64_t j = channels.first * size; j < last; j += WIDE) {
        const int64_t m = least(WIDE, last - j);
        NAME(powers)(job, i, n, j, m, some);
        for (int64_t k = 0; k < m; k += ROWS) {
          const int64_t call = k / ROWS; /* fetches a line of every row in the upper or lower half */
          const REAL *next = job->weight + (i + call % 2 * (n / 2)) * all + j + m + call / 2 * LINE;
          const NAME(Soon) soon = {next, all, GROUP * all, 0};
          NAME(product)(some + k, 1, m, NAME(gradients)(job) + i * PANEL, job->out * PANEL, n,
                        job->room + (j + k) * length, length, least(ROWS, m - k), length, i > 0, soon);
        }
      }
    }
    NAME(fold)(job, channels, job->room);
  }
}

/* How many numbers there must be room for. */
int64_t NAME(convolution_room)(const NAME(Convolution) * job, int threads) {
  const int64_t all = NAME(window)(job), places = NAME(places)(job);
  const int64_t windows = all * NAME(whole)(places);
  if (job->result) return windows;
  if (job->step) return NAME(passing)(job, threads) - job->room;
  return windows + job->out * NAME(whole)(places) + (job->to_power ? places * NAME(whole)(all) : 0);
}

void NAME(convolution)(NAME(Convolution) * job, int threads) {
  NAME(Powers) powers = {job->exponent, job->scale, {0}, {0}};
  job->powers = &powers;
  if (job->step) NAME(prepare)();
  threads = (int)least(threads, MOST_THREADS);
  if (job->result) {
    on_threads(NAME(unfold_share), job, threads);
    on_threads(NAME(convolve_share), job, threads);
  } else {
    on_threads(NAME(list_share), job, threads);
    on_threads(NAME(back_share), job, threads);
    NAME(collect_powers)(&powers, &job->total, &job->largest);
  }
}

#undef LANES
#undef PANEL
#undef NOWHERE
#undef AT_PIXELS
#undef ENTRY
#undef LINE
#undef PRODUCT
#undef STEP
#undef PRODUCTS
#undef MOST
