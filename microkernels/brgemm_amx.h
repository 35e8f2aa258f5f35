/* The three steps of brgemm.h on the tile registers of AMX, for register tiles of up to 64 rows of
 * C: vectors become tiles of up to 16 rows.  The sums stay in tiles 0 to 3 from ps_begin to ps_end,
 * A passes through tiles 4 and 5, B through 6 and 7; `acc` is not used.  Between its first ps_begin
 * and its last ps_end a thread holds the shapes of its tiles: ps_tiles_configure before ps_begin,
 * ps_tiles_release after the last. */

/* Steps from a prefetch of B to its use.  A step of four products takes 64 cycles, and the last
 * level answers in 300 to 400. */
enum { PS_AHEAD = 6 };

/* Memory for one tile. */
typedef struct {
    _Alignas(64) char at[64 * PS_TALL];
} ps_patch;

/* A step, as all functions below see it: A and B at its first word, bit i of `rows` for row i of A,
 * what the other rows hold, and whether they take part. */
typedef struct {
    const ps_a *a;
    const ps_b *b;
    uint64_t rows;
    ps_wide filling;
    int filled, words, width;
    int64_t a_k;
} ps_step;

PS_INLINE int ps_joined(ps_step k) { return k.a_k == PS_WORD && k.width == PS_WORD; }

/* What a step reads of a row of A, zeros behind. */
PS_INLINE __m512i ps_words(const ps_a *row, ps_step k)
{
    if (ps_joined(k))
        return ps_int_load((const void *)row, k.words);
    _Alignas(64) int32_t words[16] = {0};
    for (int i = 0; i < k.words; ++i)
        __builtin_memcpy(words + i, row + i * k.a_k, (unsigned)k.width * sizeof(ps_a));
    return _mm512_loadu_si512(words);
}

/* Tile m of A, row by row. */
PS_INLINE void ps_patch_a(ps_patch *patch, ps_grid g, ps_tile t, ps_step k, int m)
{
    PS_UNROLL
    for (int j = 0; j < PS_TALL; ++j) {
        if (j >= ps_height(g, m))
            continue;
        const int i = ps_row_at(g, t, ps_start(g, m) + j);
        const int real = i >= 0 && k.rows >> i & 1;
        _mm512_store_si512(patch->at + 64 * j,
                           real ? ps_words(k.a + ps_a_row(t, i), k) : k.filling);
    }
}

/* Load tile m of A. What lies in a gap is read only where there are rows before and behind it. */
PS_INLINE void ps_load_a(ps_patch *patch, ps_grid g, ps_tile t, ps_step k, int m)
{
    const uint64_t all = ps_first_bits(t.rows), here = ps_rows_in(g, t, m);
    const int whole = g.pitch == t.wrap ? (k.rows & here) == here : (k.rows & all) == all;
    const int p = ps_start(g, m);
    if (g.step && whole && ps_joined(k) && k.words == ps_deep(t)) {
        const ps_a *from = k.a + p / g.pitch * t.a_outer + p % g.pitch * t.a_inner;
        ps_tile_load(ps_tile_of_a(g, m), from, g.step * (int64_t)sizeof(ps_a));
        return;
    }
    ps_patch_a(patch, g, t, k, m);
    ps_tile_load(ps_tile_of_a(g, m), patch->at, 64);
}

/* Load 16 columns of B; words that the run no longer has are zero. */
PS_INLINE void ps_load_b(ps_patch *patch, ps_tile t, ps_step k, int v)
{
    const int64_t row = t.vecs * PS_LANES * PS_WORD;
    const ps_b *from = k.b + v * PS_LANES * PS_WORD;
    if (k.words == ps_deep(t)) {
        ps_tile_load(PS_OF_B + v % 2, from, row * (int64_t)sizeof(ps_b));
        return;
    }
    for (int i = 0; i < ps_deep(t); ++i)
        _mm512_store_si512(patch->at + 64 * i, i < k.words ? _mm512_loadu_si512(from + i * row)
                                                           : _mm512_setzero_si512());
    ps_tile_load(PS_OF_B + v % 2, patch->at, 64);
}

#define ps_tile_dot                                                                                \
    _Generic((ps_a *)0, uint16_t *: ps_tile_dot_bf16, uint8_t *: ps_tile_dot_u8,                   \
             int8_t *: ps_tile_dot_s8)

/* A tile of B is loaded once a step while there are registers for all of them. */
PS_INLINE void ps_tiles_step(ps_grid g, ps_tile t, ps_step k)
{
    ps_patch of_a, of_b;
    int loaded = 0;
    PS_UNROLL
    for (int m = 0; m < g.tiles; ++m) {
        if (!k.filled && !(k.rows & ps_rows_in(g, t, m)))
            continue;
        ps_load_a(&of_a, g, t, k, m);
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v) {
            if (!loaded || t.vecs > 2)
                ps_load_b(&of_b, t, k, v);
            ps_tile_dot(m * t.vecs + v, ps_tile_of_a(g, m), PS_OF_B + v % 2);
        }
        loaded = 1;
    }
}

/* `k` is the first step. */
PS_INLINE void ps_tiles_steps(ps_tile t, ps_step k, int64_t length)
{
    const ps_grid g = ps_grid_of(t);
    const int64_t row = t.vecs * PS_LANES * PS_WORD;
    k.words = ps_deep(t);
    for (; length >= k.words; length -= k.words) {
        PS_UNROLL
        for (int i = 0; i < k.words * t.vecs; ++i)
            _mm_prefetch((const char *)(k.b + k.words * PS_AHEAD * row) + 64 * i, _MM_HINT_T0);
        ps_tiles_step(g, t, k);
        k.a += k.words * k.a_k;
        k.b += k.words * row;
    }
    k.words = (int)length;
    if (length)
        ps_tiles_step(g, t, k);
}

PS_INLINE void ps_tiles_run_part(ps_acc *acc, ps_tile t, uint64_t rows, const ps_a *restrict a,
                                 const ps_b *restrict b, int64_t length, int64_t a_k, int width)
{
    const ps_step first = {.a = a, .b = b, .rows = rows, .filling = ps_int_splat(0),
                           .width = width, .a_k = a_k};
    (void)acc;
    ps_tiles_steps(t, first, length);
}

PS_INLINE void ps_tiles_run(ps_acc *acc, ps_tile t, uint64_t rows, const ps_a *restrict a,
                            const ps_b *restrict b, int64_t length, int64_t a_k)
{
    ps_tiles_run_part(acc, t, rows, a, b, length, a_k, PS_WORD);
}

PS_INLINE void ps_tiles_run_filled(ps_acc *acc, ps_tile t, uint64_t rows, int32_t zero,
                                   const ps_a *restrict a, const ps_b *restrict b, int64_t length,
                                   int64_t a_k, int width)
{
    const ps_step first = {.a = a, .b = b, .rows = rows, .filling = ps_filling(zero), .filled = 1,
                           .width = width, .a_k = a_k};
    (void)acc;
    ps_tiles_steps(t, first, length);
}

/* Sums on their way between tiles and vectors, by position: 4 KiB. */
typedef ps_acc ps_sums[PS_TALL * PS_SUMS];

PS_INLINE void ps_tiles_begin(ps_acc *acc, ps_tile t, const ps_y *c, int accumulate)
{
    const ps_grid g = ps_grid_of(t);
    ps_sums sums;
    (void)acc;
    for (int i = 0; accumulate && i < t.rows; ++i)
        ps_begin(sums + ps_position(i, t.wrap, g.pitch) * t.vecs, ps_one_row(t), c + ps_c_row(t, i),
                 1);
    PS_UNROLL
    for (int m = 0; m < g.tiles; ++m) {
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v)
            if (accumulate)
                ps_tile_load(m * t.vecs + v, sums + ps_start(g, m) * t.vecs + v, 64 * t.vecs);
            else
                ps_tile_zero(m * t.vecs + v);
    }
}

PS_INLINE void ps_tiles_end(ps_acc *acc, ps_tile t, ps_y *c, const ps_epilogue *e)
{
    const ps_grid g = ps_grid_of(t);
    ps_sums sums;
    (void)acc;
    PS_UNROLL
    for (int m = 0; m < g.tiles; ++m) {
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v)
            ps_tile_store(m * t.vecs + v, sums + ps_start(g, m) * t.vecs + v, 64 * t.vecs);
    }
    ps_end_parts(sums, g.pitch, t, c, e);
}

/* What follows is written against these names. */
#define ps_begin ps_tiles_begin
#define ps_run ps_tiles_run
#define ps_run_part ps_tiles_run_part
#define ps_run_filled ps_tiles_run_filled
#define ps_end ps_tiles_end
