/* How a register tile lies on the tile registers of AMX: up to 64 rows of C on tiles of up to 16.
 * Sums are in tiles 0 to 3, A passes through tiles 4 and 5, B through 6 and 7. */

enum { PS_TALL = 16, PS_SUMS = 4, PS_OF_A = 4, PS_OF_B = 6 };

/* Rows of C on tiles: the first `taller` of `tiles` have `height` positions, the rest one fewer.
 * Row i is at position i / wrap * pitch + i % wrap; positions between them are computed in vain. */
typedef struct {
    int tiles, height, taller, pitch;
    int64_t step; /* elements of A from a position to the next one of its tile; 0: no such number */
} ps_grid;

/* Words of k in a step. */
PS_INLINE int ps_deep(ps_tile t) { return t.words ? t.words : 16; }

/* `positions` split evenly over `tiles`. */
PS_INLINE ps_grid ps_grid_even(int tiles, int positions, int pitch, int64_t step)
{
    const int height = (positions + tiles - 1) / tiles;
    const ps_grid g = {tiles, height, positions - (height - 1) * tiles, pitch, step};
    return g;
}

/* As few tiles as can be, and of those that are possible then, one that tileload can read straight
 * from A: all rows evenly apart, one image row a tile, or the gaps between image rows loaded along;
 * then one image row a tile if there are tiles enough. */
PS_INLINE ps_grid ps_grid_of(ps_tile t)
{
    const int least = (t.rows + PS_TALL - 1) / PS_TALL, most = PS_SUMS / t.vecs;
    const int lines = (t.rows + t.wrap - 1) / t.wrap;
    if (t.rows == 1)
        return ps_grid_even(1, 1, 1, 1);
    if (lines == 1 || t.a_outer == t.wrap * t.a_inner)
        return ps_grid_even(least, t.rows, t.wrap, t.a_inner);
    if (t.wrap == 1)
        return ps_grid_even(least, t.rows, 1, t.a_outer);
    const int by_line = t.wrap <= PS_TALL && t.rows % t.wrap == 0 && lines <= most;
    if (by_line && lines == least)
        return ps_grid_even(lines, t.rows, t.wrap, t.a_inner);
    if (t.a_inner > 0 && t.a_outer > t.wrap * t.a_inner && t.a_outer % t.a_inner == 0 &&
        t.a_outer / t.a_inner < 2 * PS_TALL) {
        const int pitch = (int)(t.a_outer / t.a_inner);
        const int positions = ps_position(t.rows - 1, t.wrap, pitch) + 1;
        if (positions <= least * PS_TALL)
            return ps_grid_even(least, positions, pitch, t.a_inner);
    }
    if (by_line)
        return ps_grid_even(lines, t.rows, t.wrap, t.a_inner);
    return ps_grid_even(least, t.rows, t.wrap, 0);
}

PS_INLINE int ps_height(ps_grid g, int m) { return g.height - (m >= g.taller); }

/* First position of tile m. */
PS_INLINE int ps_start(ps_grid g, int m)
{
    return m * g.height - (m > g.taller ? m - g.taller : 0);
}

/* Rows of C before a position. */
PS_INLINE int ps_rows_before(ps_grid g, ps_tile t, int p)
{
    const int rows = p / g.pitch * t.wrap + (p % g.pitch < t.wrap ? p % g.pitch : t.wrap);
    return rows < t.rows ? rows : t.rows;
}

/* The row of C at a position, or -1 in a gap. */
PS_INLINE int ps_row_at(ps_grid g, ps_tile t, int p)
{
    return p % g.pitch < t.wrap ? p / g.pitch * t.wrap + p % g.pitch : -1;
}

PS_INLINE uint64_t ps_first_bits(int n) { return n < 64 ? ((uint64_t)1 << n) - 1 : ~(uint64_t)0; }

/* Bits of the rows of C in tile m. */
PS_INLINE uint64_t ps_rows_in(ps_grid g, ps_tile t, int m)
{
    return ps_first_bits(ps_rows_before(g, t, ps_start(g, m) + ps_height(g, m))) &
           ~ps_first_bits(ps_rows_before(g, t, ps_start(g, m)));
}

/* Tiles of different height take different registers for A; of one height, turns. */
PS_INLINE int ps_tile_of_a(ps_grid g, int m)
{
    return PS_OF_A + (g.taller == g.tiles ? m & 1 : m >= g.taller);
}

/* Configure what `t` needs, unless it is what `configured` says: 0 is nothing. */
PS_INLINE void ps_tiles_configure(int *configured, ps_tile t)
{
    const ps_grid g = ps_grid_of(t);
    const int id = g.height | g.taller << 5 | g.tiles << 8 | t.vecs << 11 | ps_deep(t) << 14;
    if (*configured == id)
        return;
    _Alignas(64) ps_tile_config config = {.palette = 1};
    for (int m = 0; m < g.tiles; ++m) {
        for (int v = 0; v < t.vecs; ++v) {
            config.rows[m * t.vecs + v] = (uint8_t)ps_height(g, m);
            config.row_bytes[m * t.vecs + v] = 64;
        }
        config.rows[ps_tile_of_a(g, m)] = (uint8_t)ps_height(g, m);
        config.row_bytes[ps_tile_of_a(g, m)] = (uint16_t)(4 * ps_deep(t));
    }
    for (int v = 0; v < 2; ++v) {
        config.rows[PS_OF_B + v] = (uint8_t)ps_deep(t);
        config.row_bytes[PS_OF_B + v] = 64;
    }
    ps_tile_configure(&config);
    *configured = id;
}

/* No PS_INLINE: entries, which are compiled for any CPU, call it. */
static PS_KERNEL __attribute__((unused)) void ps_tiles_release(int *configured)
{
    if (*configured)
        ps_tile_release();
    *configured = 0;
}
