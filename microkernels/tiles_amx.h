/* The eight tile registers of AMX behind a few functions.  Tile numbers are immediates in the
 * instructions: every switch here folds away once loops over tiles are unrolled. */

/* Operand of ldtilecfg, palette 1: rows and bytes a row of every tile; both 0 for an unused one. */
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} ps_tile_config;

/* The intrinsics of some compilers do not say that they read memory: what was stored before them
 * must be there, and nothing behind them may move up. */
#define PS_TILE_DO(what)                                                                           \
    do {                                                                                           \
        PS_RELOAD();                                                       \
        what;                                                                                      \
        PS_RELOAD();                                                       \
    } while (0)
#define PS_TILE_CASE(n, what)                                                                      \
    case n:                                                                                        \
        PS_TILE_DO(what);                                                                          \
        break;
#define PS_TILE_SWITCH(n, OF)                                                                      \
    switch (n) {                                                                                   \
        PS_TILE_CASE(0, OF(0))                                                                     \
        PS_TILE_CASE(1, OF(1))                                                                     \
        PS_TILE_CASE(2, OF(2))                                                                     \
        PS_TILE_CASE(3, OF(3))                                                                     \
        PS_TILE_CASE(4, OF(4))                                                                     \
        PS_TILE_CASE(5, OF(5))                                                                     \
        PS_TILE_CASE(6, OF(6))                                                                     \
        PS_TILE_CASE(7, OF(7))                                                                     \
    }

/* All tiles are zero afterwards. */
PS_INLINE void ps_tile_configure(const ps_tile_config *config)
{
    PS_TILE_DO(_tile_loadconfig(config));
}
/* No tile is configured afterwards, and a task switch has nothing to save. */
PS_INLINE void ps_tile_release(void) { PS_TILE_DO(_tile_release()); }

PS_INLINE void ps_tile_zero(int n)
{
#define PS_OF(n) _tile_zero(n)
    PS_TILE_SWITCH(n, PS_OF)
#undef PS_OF
}
/* Rows of the tile from or to memory, `stride` bytes apart. */
PS_INLINE void ps_tile_load(int n, const void *base, int64_t stride)
{
#define PS_OF(n) _tile_loadd(n, base, stride)
    PS_TILE_SWITCH(n, PS_OF)
#undef PS_OF
}
PS_INLINE void ps_tile_store(int n, void *base, int64_t stride)
{
#define PS_OF(n) _tile_stored(n, base, stride)
    PS_TILE_SWITCH(n, PS_OF)
#undef PS_OF
}

/* Tile acc (0..3) += tile a (4, 5) x tile b (6, 7): rows of words by columns of words. */
#define PS_TILE_DOTS(acc, OF)                                                                      \
    PS_TILE_CASE(acc * 4, OF(acc, 4, 6))                                                           \
    PS_TILE_CASE(acc * 4 + 1, OF(acc, 4, 7))                                                       \
    PS_TILE_CASE(acc * 4 + 2, OF(acc, 5, 6))                                                       \
    PS_TILE_CASE(acc * 4 + 3, OF(acc, 5, 7))
#define PS_TILE_DOT(type, instruction)                                                             \
    PS_INLINE void ps_tile_dot_##type(int acc, int a, int b)                                       \
    {                                                                                              \
        switch (acc * 4 + (a - 4) * 2 + b - 6) {                                                   \
            PS_TILE_DOTS(0, instruction)                                                           \
            PS_TILE_DOTS(1, instruction)                                                           \
            PS_TILE_DOTS(2, instruction)                                                           \
            PS_TILE_DOTS(3, instruction)                                                           \
        }                                                                                          \
    }
PS_TILE_DOT(bf16, _tile_dpbf16ps) /* two bf16 a word, f32 sums */
PS_TILE_DOT(u8, _tile_dpbusd)     /* four u8 of A by four s8 of B, s32 sums */
PS_TILE_DOT(s8, _tile_dpbssd)     /* four s8 of each */
#undef PS_TILE_DOT
