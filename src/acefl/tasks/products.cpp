// Products of many small float32 matrices, for the compiled gradients of acefl/tasks/products.py.
//
// Pasted into what torch's inductor generates, inside extern "C", so nothing is included here. Every product is computed
// by itself, in one order: its bits depend neither on the others nor on the number of threads.

#ifdef __clang__
#pragma clang fp contract(fast)
#else
#pragma GCC push_options
#pragma GCC optimize("O3", "fp-contract=fast")  // what is around is compiled with less
#endif

typedef float Lanes __attribute__((vector_size(64), aligned(4)));
enum { WIDTH = 16, MOST_ROWS = 6, MOST_VECTORS = 4 };  // of a tile, whose sums stay in 24 of 32 registers

#define INLINE static inline __attribute__((always_inline))

// 16 vectors as a square: exchange the blocks of `size` beside its diagonal. For 8, 4, 2 and 1 that transposes it.
INLINE void exchange_blocks(Lanes* rows, const int size) {
#ifdef __clang__
  for (int i = 0; i < WIDTH; ++i)
    for (int j = 0; j < WIDTH; ++j)
      if (!(i & size) && (j & size)) {
        float kept = rows[i][j];
        rows[i][j] = rows[i + size][j - size];
        rows[i + size][j - size] = kept;
      }
#else
  typedef int Places __attribute__((vector_size(64)));
  Places upper, lower;
  for (int i = 0; i < WIDTH; ++i) {
    upper[i] = i & size ? WIDTH + i - size : i;
    lower[i] = i & size ? WIDTH + i : i + size;
  }
#pragma GCC unroll 16
  for (int i = 0; i < WIDTH; ++i)
    if (!(i & size)) {
      Lanes one = rows[i], other = rows[i + size];
      rows[i] = __builtin_shuffle(one, other, upper);
      rows[i + size] = __builtin_shuffle(one, other, lower);
    }
#endif
}

// b as rows of `wide` numbers, a multiple of WIDTH, filled up with zeros.
static void pack(const float* b, long by_row, long by_column, long depth, long columns, long wide, float* packed) {
  long k = 0;
  if (by_row == 1)
    for (; k + WIDTH <= depth; k += WIDTH)
      for (long j = 0; j < wide; j += WIDTH) {
        Lanes rows[WIDTH];
#pragma GCC unroll 16
        for (int i = 0; i < WIDTH; ++i)
          rows[i] = j + i < columns ? *(const Lanes*)(b + (j + i) * by_column + k) : Lanes{};
        exchange_blocks(rows, 8);
        exchange_blocks(rows, 4);
        exchange_blocks(rows, 2);
        exchange_blocks(rows, 1);
#pragma GCC unroll 16
        for (int i = 0; i < WIDTH; ++i) *(Lanes*)(packed + (k + i) * wide + j) = rows[i];
      }
  for (; k < depth; ++k)
    for (long j = 0; j < wide; ++j) packed[k * wide + j] = j < columns ? b[k * by_row + j * by_column] : 0;
}

// `rows` times `vectors` of the result, of which `columns` numbers a row are wanted.
INLINE void tile(const float* a, long a_row, long a_column, const float* b, long b_row, float* c, long c_row, long depth,
                 const int rows, const int vectors, long columns) {
  Lanes sums[MOST_ROWS][MOST_VECTORS];
#pragma GCC unroll 6
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < vectors; ++j) sums[i][j] = Lanes{};
  for (long k = 0; k < depth; ++k) {
    Lanes others[MOST_VECTORS];
#pragma GCC unroll 4
    for (int j = 0; j < vectors; ++j) others[j] = *(const Lanes*)(b + k * b_row + j * WIDTH);
#pragma GCC unroll 6
    for (int i = 0; i < rows; ++i) {
      float one = a[i * a_row + k * a_column];
#pragma GCC unroll 4
      for (int j = 0; j < vectors; ++j) sums[i][j] += one * others[j];
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < vectors; ++j)
      if (columns >= (j + 1) * WIDTH)
        *(Lanes*)(c + i * c_row + j * WIDTH) = sums[i][j];
      else
        for (long q = 0; q < columns - j * WIDTH; ++q) c[i * c_row + j * WIDTH + q] = sums[i][j][q];
}

// The compiler keeps sums in registers where it knows how many there are.
#define OF_ROWS(r, v) \
  case r: tile(a, a_row, a_column, b, b_row, c, c_row, depth, r, v, columns); break;
#define OF_VECTORS(v)                                                                                     \
  case v:                                                                                                 \
    switch (rows) { OF_ROWS(1, v) OF_ROWS(2, v) OF_ROWS(3, v) OF_ROWS(4, v) OF_ROWS(5, v) OF_ROWS(6, v) } \
    break;

static void any_tile(const float* a, long a_row, long a_column, const float* b, long b_row, float* c, long c_row,
                     long depth, long rows, long vectors, long columns) {
  switch (vectors) { OF_VECTORS(1) OF_VECTORS(2) OF_VECTORS(3) OF_VECTORS(4) }
}

static void product(const float* a, long a_row, long a_column, const float* b, long b_row, long b_column, float* c,
                    long rows, long depth, long columns) {
  long wide = (columns + WIDTH - 1) / WIDTH * WIDTH;
  float* packed = b_column == 1 && columns == wide ? 0 : (float*)__builtin_malloc(depth * wide * sizeof(float) + 64);
  if (packed) {
    pack(b, b_row, b_column, depth, columns, wide, packed);
    b = packed;
    b_row = wide;
  }
  for (long j = 0; j < wide; j += MOST_VECTORS * WIDTH)
    for (long i = 0; i < rows; i += MOST_ROWS)
      any_tile(a + i * a_row, a_row, a_column, b + j, b_row, c + i * columns + j, columns, depth,
               rows - i < MOST_ROWS ? rows - i : MOST_ROWS,
               wide - j < MOST_VECTORS * WIDTH ? (wide - j) / WIDTH : MOST_VECTORS, columns - j);
  __builtin_free(packed);
}

AOTITorchError aoti_torch_cpu_product(AtenTensorHandle first, AtenTensorHandle second, AtenTensorHandle* result) {
  int64_t *left, *right, *by_left, *by_right;
  void *a, *b, *c;
  int32_t kind, other;
  if (aoti_torch_get_sizes(first, &left) || aoti_torch_get_sizes(second, &right) ||
      aoti_torch_get_strides(first, &by_left) || aoti_torch_get_strides(second, &by_right) ||
      aoti_torch_get_data_ptr(first, &a) || aoti_torch_get_data_ptr(second, &b) ||
      aoti_torch_get_dtype(first, &kind) || aoti_torch_get_dtype(second, &other) ||
      kind != aoti_torch_dtype_float32() || other != kind)
    return AOTI_TORCH_FAILURE;
  const long count = left[0], rows = left[1], depth = left[2], columns = right[2];
  const int64_t sizes[3] = {count, rows, columns}, strides[3] = {rows * columns, columns, 1};
  if (aoti_torch_empty_strided(3, sizes, strides, kind, aoti_torch_device_type_cpu(), 0, result) ||
      aoti_torch_get_data_ptr(*result, &c))
    return AOTI_TORCH_FAILURE;
#pragma omp parallel for if (count * rows * depth * columns > 1 << 21)
  for (long q = 0; q < count; ++q)
    product((const float*)a + q * by_left[0], by_left[1], by_left[2], (const float*)b + q * by_right[0], by_right[1],
            by_right[2], (float*)c + q * rows * columns, rows, depth, columns);
  return AOTI_TORCH_SUCCESS;
}

#ifndef __clang__
#pragma GCC pop_options
#endif
