/* CUDA C++: whole numbers of 32 bits, and those of 8 bits in memory. */
#define INT8_MIN (-128)
#define INT8_MAX 127
#define UINT8_MAX 255
/* No product is contracted with a sum. */
#define PS_ROUND(x) ((void)0)

/* The scales of a result as a buffer holds them: those of channels follow the others. */
#define PS_SCALES
typedef struct {
    float residual_scale;
    int32_t residual_zero, y_zero;
    float scale[1];
} polysci_scales;

typedef struct alignas(4 * PS_LANES) {
    int32_t lane[PS_LANES];
} ps_int;
#define PS_EACH_WHOLE(value)                                                                       \
    ps_int z;                                                                                      \
    PS_UNROLL                                                                                      \
    for (int i = 0; i < PS_LANES; ++i)                                                             \
        z.lane[i] = value;                                                                         \
    return z

PS_INLINE ps_int ps_int_splat(int32_t x) { PS_EACH_WHOLE(x); }
PS_INLINE ps_int ps_int_add(ps_int x, ps_int y)
{
    PS_EACH_WHOLE((int32_t)((uint32_t)x.lane[i] + (uint32_t)y.lane[i]));
}
PS_INLINE ps_int ps_int_max(ps_int x, ps_int y)
{
    PS_EACH_WHOLE(x.lane[i] > y.lane[i] ? x.lane[i] : y.lane[i]);
}
PS_INLINE ps_int ps_int_min(ps_int x, ps_int y)
{
    PS_EACH_WHOLE(x.lane[i] < y.lane[i] ? x.lane[i] : y.lane[i]);
}
PS_INLINE ps_vec ps_to_real(ps_int x) { PS_EACH_LANE((float)x.lane[i]); }
/* To the nearest, ties to even; at most 2^30 in size: a zero point of 8 bits fits beside it. */
PS_INLINE ps_int ps_to_int(ps_vec x)
{
    const float most = 0x1p30f;
    PS_EACH_WHOLE((int32_t)rintf(x.lane[i] > most    ? most
                                 : x.lane[i] < -most ? -most
                                                     : x.lane[i]));
}
/* The same bits. */
PS_INLINE ps_vec ps_as_real(ps_int x) { PS_EACH_LANE(__int_as_float(x.lane[i])); }
PS_INLINE ps_int ps_as_int(ps_vec x) { PS_EACH_WHOLE(__float_as_int(x.lane[i])); }

/* Numbers in memory; the first `lanes`, zeros behind them. */
PS_INLINE ps_int ps_int_load(const int32_t *p, int lanes) { PS_EACH_WHOLE(i < lanes ? p[i] : 0); }
PS_INLINE ps_int ps_load_u8(const uint8_t *p, int lanes) { PS_EACH_WHOLE(i < lanes ? p[i] : 0); }
PS_INLINE ps_int ps_load_s8(const int8_t *p, int lanes) { PS_EACH_WHOLE(i < lanes ? p[i] : 0); }
#define PS_STORE_WHOLE(value)                                                                      \
    PS_UNROLL                                                                                      \
    for (int i = 0; i < PS_LANES; ++i)                                                             \
        if (i < lanes)                                                                             \
    p[i] = value
PS_INLINE void ps_int_store(int32_t *p, ps_int x, int lanes) { PS_STORE_WHOLE(x.lane[i]); }
/* Two or four numbers at once, where they lie in one word. */
PS_INLINE void ps_store_bytes(uint8_t *p, ps_int x, int lanes)
{
    const uint32_t pair = (uint8_t)x.lane[0] | (uint32_t)(uint8_t)x.lane[1] << 8;
    if (lanes == 4 && (uintptr_t)p % 4 == 0)
        *(uint32_t *)p = pair | (uint32_t)(uint8_t)x.lane[2] << 16 | (uint32_t)x.lane[3] << 24;
    else if (lanes == 2 && (uintptr_t)p % 2 == 0)
        *(uint16_t *)p = (uint16_t)pair;
    else {
        PS_STORE_WHOLE((uint8_t)x.lane[i]);
    }
}
PS_SMALL ps_int ps_all_within(ps_int x, int32_t least, int32_t most)
{
    return ps_int_min(ps_int_max(x, ps_int_splat(least)), ps_int_splat(most));
}
PS_INLINE void ps_store_u8(uint8_t *p, ps_int x, int lanes) /* saturated */
{
    ps_store_bytes(p, ps_all_within(x, 0, UINT8_MAX), lanes);
}
PS_INLINE void ps_store_s8(int8_t *p, ps_int x, int lanes) /* saturated */
{
    ps_store_bytes((uint8_t *)p, ps_all_within(x, INT8_MIN, INT8_MAX), lanes);
}

/* Lanes of 16-bit pairs: the sum of both products, added to z. */
PS_INLINE ps_int ps_pairs(ps_int x, ps_int y, ps_int z)
{
    PS_UNROLL
    for (int i = 0; i < PS_LANES; ++i)
        z.lane[i] += (int16_t)x.lane[i] * (int16_t)y.lane[i] +
                     (x.lane[i] >> 16) * (y.lane[i] >> 16);
    return z;
}

/* No gain here from storing several vectors at once. */
enum { PS_8BIT_WIDE = 1 };
PS_INLINE void ps_store_u8_all(uint8_t *const *to, const ps_vec *x, const int *used, int together)
{
    (void)together; /* one */
    ps_store_u8(to[0], ps_as_int(*x), used[0]);
}
PS_INLINE void ps_store_s8_all(int8_t *const *to, const ps_vec *x, const int *used, int together)
{
    (void)together; /* one */
    ps_store_s8(to[0], ps_as_int(*x), used[0]);
}
