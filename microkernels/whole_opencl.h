/* OpenCL C: whole numbers of 32 bits, and those of 8 bits in memory. */
#define INT8_MIN CHAR_MIN
#define INT8_MAX CHAR_MAX
#define UINT8_MAX UCHAR_MAX
/* No product is contracted with a sum. */
#define PS_ROUND(x) ((void)0)

/* The scales of a result as a buffer holds them: those of channels follow the others. */
#define PS_SCALES
typedef struct {
    float residual_scale;
    int32_t residual_zero, y_zero;
    float scale[1];
} polysci_scales;

typedef PS_PASTE(int, PS_LANES) ps_int;
PS_INLINE ps_int ps_int_splat(int32_t x) { return (ps_int)(x); }
PS_INLINE ps_int ps_int_add(ps_int x, ps_int y) { return x + y; }
PS_INLINE ps_int ps_int_max(ps_int x, ps_int y) { return max(x, y); }
PS_INLINE ps_int ps_int_min(ps_int x, ps_int y) { return min(x, y); }
PS_INLINE ps_vec ps_to_real(ps_int x) { return PS_PASTE(convert_float, PS_LANES)(x); }
/* To the nearest, ties to even; at most 2^30 in size: a zero point of 8 bits fits beside it. */
PS_INLINE ps_int ps_to_int(ps_vec x)
{
    return PS_PASTE(convert_int, PS_LANES)(rint(clamp(x, -0x1p30f, 0x1p30f)));
}
/* The same bits. */
PS_INLINE ps_vec ps_as_real(ps_int x) { return PS_PASTE(as_float, PS_LANES)(x); }
PS_INLINE ps_int ps_as_int(ps_vec x) { return PS_PASTE(as_int, PS_LANES)(x); }

/* Numbers in memory; the first `lanes`, zeros behind them. */
#define PS_LOAD_WHOLE(p)                                                                           \
    ps_int x = ps_int_splat(0);                                                                    \
    if (lanes == PS_LANES)                                                                         \
        return PS_PASTE(convert_int, PS_LANES)(PS_PASTE(vload, PS_LANES)(0, p));                   \
    PS_UNROLL                                                                                      \
    for (int i = 0; i < PS_LANES; ++i)                                                             \
        if (i < lanes)                                                                             \
            x[i] = (p)[i];                                                                         \
    return x
PS_INLINE ps_int ps_int_load(const __global void *from, int lanes)
{
    const __global int32_t *p = (const __global int32_t *)from;
    PS_LOAD_WHOLE(p);
}
PS_INLINE ps_int ps_load_u8(const __global uint8_t *p, int lanes) { PS_LOAD_WHOLE(p); }
PS_INLINE ps_int ps_load_s8(const __global int8_t *p, int lanes) { PS_LOAD_WHOLE(p); }
PS_INLINE ps_int ps_load_s16(const __global int16_t *p, int lanes) { PS_LOAD_WHOLE(p); }
/* Saturated, where they are narrow. */
#define PS_STORE_WHOLE(kind)                                                                       \
    const PS_PASTE(kind, PS_LANES) y = PS_PASTE(PS_PASTE(convert_##kind, PS_LANES), _sat)(x);      \
    if (lanes == PS_LANES) {                                                                       \
        PS_PASTE(vstore, PS_LANES)(y, 0, p);                                                       \
        return;                                                                                    \
    }                                                                                              \
    PS_UNROLL                                                                                      \
    for (int i = 0; i < PS_LANES; ++i)                                                             \
        if (i < lanes)                                                                             \
    p[i] = y[i]
PS_INLINE void ps_int_store(__global int32_t *p, ps_int x, int lanes) { PS_STORE_WHOLE(int); }
PS_INLINE void ps_store_u8(__global uint8_t *p, ps_int x, int lanes) { PS_STORE_WHOLE(uchar); }
PS_INLINE void ps_store_s8(__global int8_t *p, ps_int x, int lanes) { PS_STORE_WHOLE(char); }
PS_INLINE void ps_store_s16(__global int16_t *p, ps_int x, int lanes) { PS_STORE_WHOLE(short); }

/* Elements of y in a work-item's own memory. */
PS_INLINE ps_int ps_own(const int32_t *p, int lanes) { PS_LOAD_WHOLE(p); }
PS_INLINE ps_int ps_own(const uint8_t *p, int lanes) { PS_LOAD_WHOLE(p); }
PS_INLINE ps_int ps_own(const int8_t *p, int lanes) { PS_LOAD_WHOLE(p); }
PS_INLINE ps_vec ps_y_load(const int32_t *p, int lanes) { return ps_as_real(ps_own(p, lanes)); }
PS_INLINE ps_vec ps_y_load(const uint8_t *p, int lanes) { return ps_as_real(ps_own(p, lanes)); }
PS_INLINE ps_vec ps_y_load(const int8_t *p, int lanes) { return ps_as_real(ps_own(p, lanes)); }
PS_INLINE void ps_own_store(int32_t *p, ps_int x, int lanes) { PS_STORE_WHOLE(int); }
PS_INLINE void ps_own_store(uint8_t *p, ps_int x, int lanes) { PS_STORE_WHOLE(uchar); }
PS_INLINE void ps_own_store(int8_t *p, ps_int x, int lanes) { PS_STORE_WHOLE(char); }
PS_INLINE void ps_y_store(int32_t *p, ps_vec x, int lanes) { ps_own_store(p, ps_as_int(x), lanes); }
PS_INLINE void ps_y_store(uint8_t *p, ps_vec x, int lanes) { ps_own_store(p, ps_as_int(x), lanes); }
PS_INLINE void ps_y_store(int8_t *p, ps_vec x, int lanes) { ps_own_store(p, ps_as_int(x), lanes); }

/* Lanes of 16-bit pairs: the sum of both products, added to z. */
PS_INLINE ps_int ps_pairs(ps_int x, ps_int y, ps_int z)
{
    return z + (x << 16 >> 16) * (y << 16 >> 16) + (x >> 16) * (y >> 16);
}

/* No gain here from storing several vectors at once. */
enum { PS_8BIT_WIDE = 1 };
PS_INLINE void ps_store_u8_all(__global uint8_t *const *to, const ps_vec *x, const int *used,
                               int together)
{
    (void)together; /* one */
    ps_store_u8(to[0], ps_as_int(*x), used[0]);
}
PS_INLINE void ps_store_s8_all(__global int8_t *const *to, const ps_vec *x, const int *used,
                               int together)
{
    (void)together; /* one */
    ps_store_s8(to[0], ps_as_int(*x), used[0]);
}
