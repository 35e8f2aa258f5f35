/* The tile registers of tiles_amx.h in plain C, one set a thread, for CPUs that have none.
 *
 * As the instructions do: rows and bytes of a tile come from the configuration (palette 1), what
 * lies outside them is zero; configuring and releasing clears all tiles; shapes that do not fit, a
 * tile that is not configured and a configuration that is not allowed end the process, where the
 * CPU would raise an exception.
 *
 * tdpbf16ps: for each row of A and column of B two sums, of the first and of the second elements of
 * all words, each started at zero and grown by fused multiply-adds in the order of k; then their sum
 * is added to C.  Every step rounds to nearest even; denormal operands count as zero of their sign,
 * and denormal results become it, whatever MXCSR says.
 * tdpbusd, tdpbssd: exact products, sums that wrap around at 32 bits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} ps_tile_config;

typedef union {
    float real[16][16];
    uint32_t word[16][16];
    uint16_t half[16][32];
    uint8_t byte[16][64];
} ps_emulated_tile;

static _Thread_local ps_emulated_tile ps_tiles[8];
static _Thread_local ps_tile_config ps_tiles_now;
/* For tests: how often this thread has configured its tiles, and dots it has done. */
static _Thread_local int64_t ps_tiles_configured, ps_tiles_dots;

#define PS_EMULATED static __attribute__((unused, noinline)) PS_TARGET

static void ps_tile_demand(int fulfilled, const char *rule)
{
    if (fulfilled)
        return;
    fprintf(stderr, "tile instruction: %s\n", rule);
    abort();
}

static int ps_tile_bytes(int n)
{
    ps_tile_demand(n >= 0 && n < 8 && ps_tiles_now.palette == 1 && ps_tiles_now.rows[n] > 0,
                   "the tile is not configured");
    return ps_tiles_now.row_bytes[n];
}

PS_EMULATED void ps_tile_release(void)
{
    memset(&ps_tiles_now, 0, sizeof ps_tiles_now);
    memset(ps_tiles, 0, sizeof ps_tiles);
}

PS_EMULATED void ps_tile_configure(const ps_tile_config *config)
{
    static const uint8_t none[14] = {0};
    ps_tile_demand(config->palette == 1 && config->start_row == 0, "palette 1 from row 0");
    ps_tile_demand(!memcmp(config->reserved, none, sizeof none), "reserved bytes are zero");
    for (int n = 0; n < 16; ++n) {
        ps_tile_demand(config->rows[n] <= (n < 8 ? 16 : 0), "at most 16 rows, 8 tiles");
        ps_tile_demand(config->row_bytes[n] <= (n < 8 ? 64 : 0), "at most 64 bytes, 8 tiles");
        ps_tile_demand(!config->rows[n] == !config->row_bytes[n], "rows without bytes");
    }
    ps_tile_release();
    ps_tiles_now = *config;
    ++ps_tiles_configured;
}

PS_EMULATED void ps_tile_zero(int n)
{
    ps_tile_bytes(n);
    memset(ps_tiles + n, 0, sizeof *ps_tiles);
}

PS_EMULATED void ps_tile_load(int n, const void *base, int64_t stride)
{
    const int bytes = ps_tile_bytes(n);
    memset(ps_tiles + n, 0, sizeof *ps_tiles);
    for (int i = 0; i < ps_tiles_now.rows[n]; ++i)
        memcpy(ps_tiles[n].byte[i], (const char *)base + i * stride, (size_t)bytes);
}

PS_EMULATED void ps_tile_store(int n, void *base, int64_t stride)
{
    const int bytes = ps_tile_bytes(n);
    for (int i = 0; i < ps_tiles_now.rows[n]; ++i)
        memcpy((char *)base + i * stride, ps_tiles[n].byte[i], (size_t)bytes);
}

static void ps_tile_fit(int acc, int a, int b)
{
    ps_tile_demand(acc != a && acc != b && a != b, "three different tiles");
    ps_tile_demand(ps_tile_bytes(a) == 4 * ps_tiles_now.rows[b], "words of A are rows of B");
    ps_tile_demand(ps_tile_bytes(acc) == ps_tile_bytes(b), "columns of C are columns of B");
    ps_tile_demand(ps_tiles_now.rows[acc] == ps_tiles_now.rows[a], "rows of C are rows of A");
    ++ps_tiles_dots;
}

/* Zero of the same sign for a denormal. */
static inline __attribute__((always_inline)) float ps_flushed(float x)
{
    return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0, x) : x;
}

static inline __attribute__((always_inline)) float ps_half(uint16_t bits)
{
    const uint32_t word = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &word, sizeof x);
    return ps_flushed(x);
}

PS_EMULATED void ps_tile_dot_bf16(int acc, int a, int b)
{
    ps_tile_fit(acc, a, b);
    for (int i = 0; i < ps_tiles_now.rows[a]; ++i) {
        float sums[2][16] = {{0}};
        for (int k = 0; k < ps_tiles_now.rows[b]; ++k)
            for (int odd = 0; odd < 2; ++odd) {
                const float x = ps_half(ps_tiles[a].half[i][2 * k + odd]);
                for (int j = 0; j < 16; ++j)
                    sums[odd][j] = ps_flushed(__builtin_fmaf(
                        x, ps_half(ps_tiles[b].half[k][2 * j + odd]), sums[odd][j]));
            }
        for (int j = 0; j < 16; ++j)
            ps_tiles[acc].real[i][j] = ps_flushed(ps_flushed(ps_tiles[acc].real[i][j]) +
                                                  ps_flushed(sums[0][j] + sums[1][j]));
    }
}

#define PS_EMULATED_DOT(name, x_type)                                                              \
    PS_EMULATED void name(int acc, int a, int b)                                                   \
    {                                                                                              \
        ps_tile_fit(acc, a, b);                                                                    \
        for (int i = 0; i < ps_tiles_now.rows[a]; ++i)                                             \
            for (int k = 0; k < ps_tile_bytes(a); ++k) {                                           \
                const int x = (x_type)ps_tiles[a].byte[i][k];                                      \
                for (int j = 0; j < 16; ++j)                                                       \
                    ps_tiles[acc].word[i][j] +=                                                    \
                        (uint32_t)(x * (int8_t)ps_tiles[b].byte[k / 4][4 * j + k % 4]);            \
            }                                                                                      \
    }
PS_EMULATED_DOT(ps_tile_dot_u8, uint8_t)
PS_EMULATED_DOT(ps_tile_dot_s8, int8_t)
