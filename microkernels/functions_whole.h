/* Functions of whole numbers for generated loops.  All wrap; what has no result is 0: a quotient or
 * a remainder by 0, and a shift by more than the bits that there are. */
#include <stdint.h>

/* Of 32 bits. */
PS_INLINE int32_t ps_w_max(int32_t x, int32_t y) { return x > y ? x : y; }
PS_INLINE int32_t ps_w_min(int32_t x, int32_t y) { return x < y ? x : y; }
PS_INLINE int32_t ps_w_add(int32_t x, int32_t y) { return (int32_t)((uint32_t)x + (uint32_t)y); }
PS_INLINE int32_t ps_w_sub(int32_t x, int32_t y) { return (int32_t)((uint32_t)x - (uint32_t)y); }
PS_INLINE int32_t ps_w_mul(int32_t x, int32_t y) { return (int32_t)((uint32_t)x * (uint32_t)y); }
PS_INLINE int32_t ps_w_square(int32_t x) { return ps_w_mul(x, x); }
PS_INLINE int32_t ps_w_cube(int32_t x) { return ps_w_mul(ps_w_mul(x, x), x); }
PS_INLINE int32_t ps_w_neg(int32_t x) { return (int32_t)-(uint32_t)x; }
PS_INLINE int32_t ps_w_abs(int32_t x) { return x < 0 ? ps_w_neg(x) : x; }
PS_INLINE int32_t ps_w_sign(int32_t x) { return (x > 0) - (x < 0); }
PS_INLINE int32_t ps_w_div(int32_t x, int32_t y)
{
    return y == 0 ? 0 : y == -1 ? ps_w_neg(x) : x / y;
}
PS_INLINE int32_t ps_w_remainder(int32_t x, int32_t y) { return y == 0 || y == -1 ? 0 : x % y; }
PS_INLINE int32_t ps_w_mod(int32_t x, int32_t y)
{
    const int32_t rest = ps_w_remainder(x, y);
    return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}
PS_INLINE int32_t ps_w_shift_left(int32_t x, int32_t y)
{
    return y < 0 || y >= 32 ? 0 : (int32_t)((uint32_t)x << y);
}
PS_INLINE int32_t ps_w_shift_right(int32_t x, int32_t y)
{
    return x >> (y < 0 || y >= 32 ? 31 : y);
}

/* Of 64 bits. */
PS_INLINE int64_t ps_l_max(int64_t x, int64_t y) { return x > y ? x : y; }
PS_INLINE int64_t ps_l_min(int64_t x, int64_t y) { return x < y ? x : y; }
PS_INLINE int64_t ps_l_add(int64_t x, int64_t y) { return (int64_t)((uint64_t)x + (uint64_t)y); }
PS_INLINE int64_t ps_l_sub(int64_t x, int64_t y) { return (int64_t)((uint64_t)x - (uint64_t)y); }
PS_INLINE int64_t ps_l_mul(int64_t x, int64_t y) { return (int64_t)((uint64_t)x * (uint64_t)y); }
PS_INLINE int64_t ps_l_square(int64_t x) { return ps_l_mul(x, x); }
PS_INLINE int64_t ps_l_cube(int64_t x) { return ps_l_mul(ps_l_mul(x, x), x); }
PS_INLINE int64_t ps_l_neg(int64_t x) { return (int64_t)-(uint64_t)x; }
PS_INLINE int64_t ps_l_abs(int64_t x) { return x < 0 ? ps_l_neg(x) : x; }
PS_INLINE int64_t ps_l_sign(int64_t x) { return (x > 0) - (x < 0); }
PS_INLINE int64_t ps_l_div(int64_t x, int64_t y)
{
    return y == 0 ? 0 : y == -1 ? ps_l_neg(x) : x / y;
}
PS_INLINE int64_t ps_l_remainder(int64_t x, int64_t y) { return y == 0 || y == -1 ? 0 : x % y; }
PS_INLINE int64_t ps_l_mod(int64_t x, int64_t y)
{
    const int64_t rest = ps_l_remainder(x, y);
    return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}
PS_INLINE int64_t ps_l_shift_left(int64_t x, int64_t y)
{
    return y < 0 || y >= 64 ? 0 : (int64_t)((uint64_t)x << y);
}
PS_INLINE int64_t ps_l_shift_right(int64_t x, int64_t y)
{
    return x >> (y < 0 || y >= 64 ? 63 : y);
}

/* Of 64 bits without a sign. */
PS_INLINE uint64_t ps_u_max(uint64_t x, uint64_t y) { return x > y ? x : y; }
PS_INLINE uint64_t ps_u_min(uint64_t x, uint64_t y) { return x < y ? x : y; }
PS_INLINE uint64_t ps_u_add(uint64_t x, uint64_t y) { return x + y; }
PS_INLINE uint64_t ps_u_sub(uint64_t x, uint64_t y) { return x - y; }
PS_INLINE uint64_t ps_u_mul(uint64_t x, uint64_t y) { return x * y; }
PS_INLINE uint64_t ps_u_square(uint64_t x) { return ps_u_mul(x, x); }
PS_INLINE uint64_t ps_u_cube(uint64_t x) { return ps_u_mul(ps_u_mul(x, x), x); }
PS_INLINE uint64_t ps_u_neg(uint64_t x) { return 0 - x; }
PS_INLINE uint64_t ps_u_abs(uint64_t x) { return x; }
PS_INLINE uint64_t ps_u_sign(uint64_t x) { return x > 0; }
PS_INLINE uint64_t ps_u_div(uint64_t x, uint64_t y) { return y == 0 ? 0 : x / y; }
PS_INLINE uint64_t ps_u_remainder(uint64_t x, uint64_t y) { return y == 0 ? 0 : x % y; }
PS_INLINE uint64_t ps_u_mod(uint64_t x, uint64_t y) { return ps_u_remainder(x, y); }
PS_INLINE uint64_t ps_u_shift_left(uint64_t x, uint64_t y) { return y >= 64 ? 0 : x << y; }
PS_INLINE uint64_t ps_u_shift_right(uint64_t x, uint64_t y) { return y >= 64 ? 0 : x >> y; }

/* By squares; a negative power is 0 but for 1 and -1. */
PS_INLINE uint64_t ps_u_pow(uint64_t x, uint64_t y)
{
    uint64_t power = 1;
    for (; y; y >>= 1, x *= x)
        power *= y & 1 ? x : 1;
    return power;
}
PS_INLINE int64_t ps_l_pow(int64_t x, int64_t y)
{
    const int64_t size = x == 1 || (x == -1 && y % 2 == 0) ? 1 : x == -1 ? -1 : 0;
    return y < 0 ? size : (int64_t)ps_u_pow((uint64_t)x, (uint64_t)y);
}
PS_INLINE int32_t ps_w_pow(int32_t x, int32_t y) { return (int32_t)ps_l_pow(x, y); }

/* A subscript out of data, of an axis of `extent` elements: a negative one counts from the end, and
 * what lies outside becomes the nearest one inside. */
PS_INLINE uint64_t ps_u_place(uint64_t at, uint64_t extent) { return at < extent ? at : extent - 1; }
#define PS_PLACE(letter, type)                                                 \
    PS_INLINE type ps_##letter##_place(type at, type extent)                   \
    {                                                                          \
        const type place = at < 0 ? at + extent : at, last = extent - 1;       \
        return place < 0 ? 0 : place < last ? place : last;                    \
    }
PS_PLACE(w, int32_t)
PS_PLACE(l, int64_t)

/* Random bits, 32 of them: the first word of Philox2x32-10 (Salmon et al., Parallel Random Numbers,
 * SC 2011) of a counter of two words and a key of one; of each argument the lowest 32 bits count. */
PS_INLINE uint64_t ps_u_philox(uint64_t low, uint64_t high, uint64_t key)
{
    uint32_t left = (uint32_t)low, right = (uint32_t)high, word = (uint32_t)key;
    for (int round = 0; round < 10; ++round, word += 0x9E3779B9) {
        const uint64_t product = (uint64_t)left * 0xD256D193;
        left = (uint32_t)(product >> 32) ^ word ^ right;
        right = (uint32_t)product;
    }
    return left;
}
