/* Convolutions of one image with powers of their weights, as products of matrices; kernels.c
   includes this for float and for double.

   A kernel is a matrix with one row per channel of the result and one column per entry of a window.
   The windows of an image are written down as a matrix (its places, padded to whole vectors, by its
   columns). Powers are made of some entries at a time, which stay in the first-level cache, so the
   weights are read once by each product and no power of them is ever written to memory. */

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
} NAME(Convolution);

static int64_t NAME(whole)(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

/* The same for rows that are read together: an odd number of lines, or they meet in the cache. */
static int64_t NAME(staggered)(int64_t n) {
  const int64_t line = 64 / (int64_t)sizeof(REAL), whole = NAME(whole)(n);
  return whole / line % 2 ? whole : whole + line;
}

static int64_t NAME(window)(const NAME(Convolution) * job) { return job->in * job->high * job->wide; }
static int64_t NAME(places)(const NAME(Convolution) * job) { return job->down * job->across; }

/* Where a row of windows meets the image with one of its own rows is entry * dilation - padding and
   place * stride; the places that do. Likewise for columns. */
static int64_t NAME(offset)(const NAME(Convolution) * job, int axis, int64_t entry) {
  return entry * job->dilation[axis] - job->padding[axis];
}

static Range NAME(inside)(const NAME(Convolution) * job, int axis, int64_t entry) {
  const int64_t offset = NAME(offset)(job, axis, entry), stride = job->stride[axis];
  const int64_t size = axis ? job->width : job->height, places = axis ? job->across : job->down;
  const int64_t first = offset < 0 ? (stride - 1 - offset) / stride : 0;
  const int64_t last = offset < size ? (size - 1 - offset) / stride + 1 : 0;
  return (Range){first, least(last, places)};
}

/* Lines of memory that are wanted soon: the first ones of some groups of GROUP that are `along` apart,
   and these groups `far`. */
typedef struct {
  const REAL *start;
  int64_t along, far;
} NAME(Soon);

#define LINE ((int64_t)(64 / sizeof(REAL)))

/* c (+)= a b for some rows and one or two vectors of columns; entry (i, k) of a is at
   a[i * row + k * step], rows of b are as far apart as `apart` says. Only `columns` of c are there.
   One line that is wanted soon is fetched in every second step. */
#define STEP(R, V)                                                                     \
  {                                                                                    \
    const NAME(Vector) *from = (const NAME(Vector) *)b;                                \
    _Pragma("GCC unroll 16") for (int i = 0; i < R; i++) {                             \
      const REAL factor = a[i * row];                                                  \
      _Pragma("GCC unroll 2") for (int v = 0; v < V; v++) sums[i][v] += factor * from[v]; \
    }                                                                                  \
    a += step;                                                                         \
    b += apart;                                                                        \
  }
#define PRODUCT(R, V)                                                                             \
  static void NAME(JOIN(product_##R, _##V))(const REAL *a, int64_t row, int64_t step,             \
                                            const REAL *b, int64_t apart, int64_t count, REAL *c, \
                                            int64_t stride, int64_t columns, int is_added,        \
                                            NAME(Soon) soon) {                                    \
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

/* The same for any number of columns, and at most ROWS rows. What is wanted soon are the columns of
   c that come next, if nothing else is. */
static void NAME(product)(const REAL *a, int64_t row, int64_t step, const REAL *b, int64_t apart,
                          int64_t count, REAL *c, int64_t stride, int64_t rows, int64_t columns,
                          int is_added, NAME(Soon) soon) {
  const NAME(Soon) given = soon;
  for (int64_t i = 0, n; i < rows; i += n) {
    n = rows - i == ROWS ? ROWS : rows - i >= 4 ? 4 : 1;
    for (int64_t j = 0, m; j < columns; j += m) {
      const int pair = columns - j > LANES;
      m = least(columns - j, pair ? 2 * LANES : LANES);
      if (!given.start) soon = (NAME(Soon)){c + i * stride + j + m, stride, 0};
#define CALL(f) \
  f(a + i * row, row, step, b + j, apart, count, c + i * stride + j, stride, m, is_added, soon)
      if (n == ROWS && pair) CALL(MOST(2));
      else if (n == ROWS) CALL(MOST(1));
      else if (n == 4 && pair) CALL(NAME(product_4_2));
      else if (n == 4) CALL(NAME(product_4_1));
      else if (pair) CALL(NAME(product_1_2));
      else CALL(NAME(product_1_1));
#undef CALL
    }
  }
}

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

/* The windows as columns, for some channels: (in * high * wide, places). */
static void NAME(unfold)(const NAME(Convolution) * job, Range channels, REAL *to) {
  const int64_t length = NAME(whole)(NAME(places)(job)), stride = job->stride[1];
  for (int64_t y = 0; y < job->high; y++)
    for (int64_t x = 0; x < job->wide; x++) {
      const Range rows = NAME(inside)(job, 0, y), columns = NAME(inside)(job, 1, x);
      const int64_t down = NAME(offset)(job, 0, y), right = NAME(offset)(job, 1, x);
      for (int64_t c = channels.first; c < channels.last; c++) {
        REAL *restrict start = to + ((c * job->high + y) * job->wide + x) * length;
        memset(start, 0, (size_t)length * sizeof(REAL));
        for (int64_t i = rows.first; i < rows.last; i++) {
          const int64_t row = c * job->height + i * job->stride[0] + down;
          const REAL *restrict from = job->image + row * job->width + right;
          for (int64_t j = columns.first; j < columns.last; j++)
            start[i * job->across + j] = from[j * stride];
        }
      }
    }
}

/* The transpose of that. */
static void NAME(fold)(const NAME(Convolution) * job, Range channels, const REAL *from) {
  const int64_t length = NAME(whole)(NAME(places)(job)), size = job->height * job->width;
  const int64_t stride = job->stride[1];
  memset(job->to_image + channels.first * size, 0,
         (size_t)((channels.last - channels.first) * size) * sizeof(REAL));
  for (int64_t y = 0; y < job->high; y++)
    for (int64_t x = 0; x < job->wide; x++) {
      const Range rows = NAME(inside)(job, 0, y), columns = NAME(inside)(job, 1, x);
      const int64_t down = NAME(offset)(job, 0, y), right = NAME(offset)(job, 1, x);
      for (int64_t c = channels.first; c < channels.last; c++) {
        const REAL *restrict start = from + ((c * job->high + y) * job->wide + x) * length;
        for (int64_t i = rows.first; i < rows.last; i++) {
          const int64_t row = c * job->height + i * job->stride[0] + down;
          REAL *restrict to = job->to_image + row * job->width + right;
          for (int64_t j = columns.first; j < columns.last; j++)
            to[j * stride] += start[i * job->across + j];
        }
      }
    }
}

/* The windows as rows, for some channels: (places, in * high * wide). */
static void NAME(list)(const NAME(Convolution) * job, Range channels, REAL *columns, REAL *to) {
  const int64_t length = NAME(staggered)(NAME(window)(job)), places = NAME(places)(job);
  const int64_t entries = job->high * job->wide, apart = NAME(whole)(places);
  for (int64_t c = channels.first; c < channels.last; c++) {
    NAME(unfold)(job, (Range){c, c + 1}, columns);
    const REAL *restrict from = columns + c * entries * apart;
    REAL *restrict start = to + c * entries;
    for (int64_t k = 0; k < places; k++)
      for (int64_t n = 0; n < entries; n++) start[k * length + n] = from[n * apart + k];
  }
  for (int64_t k = 0; channels.last == job->in && k < places; k++)
    memset(to + k * length + NAME(window)(job), 0,
           (size_t)(length - NAME(window)(job)) * sizeof(REAL));
}

/* First what others read, then the products. */
static void NAME(unfold_share)(void *task, int number, int count) {
  const NAME(Convolution) *job = task;
  NAME(unfold)(job, share(job->in, number, count), job->room);
}

static void NAME(convolve_share)(void *task, int number, int count) {
  const NAME(Convolution) *job = task;
  const int64_t all = NAME(window)(job), places = NAME(places)(job), length = NAME(whole)(places);
  const Range rows = share(job->out, number, count);
  REAL some[ROWS * DEEP];
  for (int64_t j = 0; j < all; j += DEEP) {
    const int64_t m = least(DEEP, all - j);
    for (int64_t i = rows.first; i < rows.last; i += ROWS) {
      const int64_t n = least(ROWS, rows.last - i);
      const NAME(Soon) soon = {job->weight + (i + n) * all + j, LINE, all};
      NAME(powers)(job, i, n, j, m, some);
      NAME(product)(some, m, 1, job->room + j * length, length, m, job->result + i * places, places,
                    n, places, j > 0, soon);
    }
  }
}

/* The same on the way back: behind the derivative by the windows come gradients and windows. */
static REAL *NAME(padded)(const NAME(Convolution) * job) {
  return job->room + NAME(window)(job) * NAME(whole)(NAME(places)(job));
}
static REAL *NAME(listed)(const NAME(Convolution) * job) {
  return NAME(padded)(job) + job->out * NAME(whole)(NAME(places)(job));
}

static void NAME(list_share)(void *task, int number, int count) {
  const NAME(Convolution) *job = task;
  const int64_t places = NAME(places)(job), length = NAME(whole)(places);
  const Range rows = share(job->out, number, count);
  for (int64_t i = rows.first; i < rows.last; i++) {
    REAL *to = NAME(padded)(job) + i * length;
    memcpy(to, job->gradient + i * places, (size_t)places * sizeof(REAL));
    memset(to + places, 0, (size_t)(length - places) * sizeof(REAL));
  }
  if (job->to_power) NAME(list)(job, share(job->in, number, count), job->room, NAME(listed)(job));
}

static void NAME(back_share)(void *task, int number, int count) {
  const NAME(Convolution) *job = task;
  const int64_t all = NAME(window)(job), places = NAME(places)(job), length = NAME(whole)(places);
  const REAL *gradient = NAME(padded)(job);
  if (job->to_power) {
    const Range rows = share(job->out, number, count);
    for (int64_t i = rows.first; i < rows.last; i += ROWS) {
      const int64_t n = least(ROWS, rows.last - i);
      REAL *found = job->to_power + i * all;
      NAME(product)(gradient + i * length, length, 1, NAME(listed)(job), NAME(staggered)(all), places,
                    found, all, n, all, 0, (NAME(Soon)){0});
      for (int64_t k = 0; job->exponent && k < n * all; k += CHUNK) /* while it is in the cache */
        NAME(raise_run)(job->powers, number, found + k, least(CHUNK, n * all - k));
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
          const NAME(Soon) soon = {next, all, GROUP * all};
          NAME(product)(some + k, 1, m, gradient + i * length, length, n,
                        job->room + (j + k) * length, length, least(ROWS, m - k), length, i > 0, soon);
        }
      }
    }
    NAME(fold)(job, channels, job->room);
  }
}

/* How many numbers there must be room for. */
int64_t NAME(convolution_room)(const NAME(Convolution) * job) {
  const int64_t all = NAME(window)(job), places = NAME(places)(job);
  const int64_t windows = all * NAME(whole)(places);
  if (job->result) return windows;
  return windows + job->out * NAME(whole)(places) + (job->to_power ? places * NAME(staggered)(all) : 0);
}

void NAME(convolution)(NAME(Convolution) * job, int threads) {
  NAME(Powers) powers = {job->exponent, job->scale, {0}, {0}};
  job->powers = &powers;
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
#undef LINE
#undef PRODUCT
#undef STEP
#undef PRODUCTS
#undef MOST
