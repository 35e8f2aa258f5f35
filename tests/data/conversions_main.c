/* Checks the conversions of a narrow_*.h header against the scalar ones, with every number of used
 * lanes, each operand at the end of its memory.  Before this text: prelude, scalar, isa, narrow. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* `size` bytes that end where memory ends. */
static void *last(size_t size)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *all = mmap(0, 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED || mprotect(all, page, PROT_READ | PROT_WRITE))
        exit(2);
    return all + page - size;
}

static int faults;
static void same(const char *what, int lanes, int lane, uint32_t from, uint32_t want, uint32_t got)
{
    if (want == got || faults++ > 20)
        return;
    printf("%s lanes=%d lane %d of %08x: expected %08x, got %08x\n", what, lanes, lane,
           (unsigned)from, (unsigned)want, (unsigned)got);
}

static uint32_t bits(float x)
{
    uint32_t y;
    memcpy(&y, &x, sizeof y);
    return y;
}

/* Exponents from end to end, all mantissas that decide how to round, both signs. */
static const uint32_t mantissas[] = {0, 1, 0xfff, 0x1000, 0x1001, 0x3000, 0x7fff, 0x8000, 0x8001,
                                     0x18000, 0x400000, 0x7fefff, 0x7ff000, 0x7fffff};
enum { MANTISSAS = sizeof mantissas / sizeof *mantissas, FLOATS = 512 * MANTISSAS };

static float number(int i)
{
    const uint32_t it = (uint32_t)(i / MANTISSAS) << 23 | mantissas[i % MANTISSAS];
    float x;
    memcpy(&x, &it, sizeof x);
    return x;
}

typedef void store(uint16_t *, ps_vec, int);
typedef ps_vec load(const uint16_t *, int);
static PS_KERNEL void put_bf16(uint16_t *p, ps_vec x, int n) { ps_store_bf16(p, x, n); }
static PS_KERNEL void put_f16(uint16_t *p, ps_vec x, int n) { ps_store_f16(p, x, n); }
static PS_KERNEL ps_vec get_bf16(const uint16_t *p, int n) { return ps_load_bf16(p, n); }
static PS_KERNEL ps_vec get_f16(const uint16_t *p, int n) { return ps_load_f16(p, n); }

static PS_KERNEL void halves(const char *what, store *put, load *get, uint16_t (*of)(float),
                             float (*value)(uint16_t))
{
    for (int lanes = 1; lanes <= PS_LANES; ++lanes) {
        uint16_t *to = last(2 * (size_t)lanes);
        for (int first = 0; first + PS_LANES <= FLOATS; first += PS_LANES) {
            float from[PS_LANES];
            for (int i = 0; i < PS_LANES; ++i)
                from[i] = number(first + i);
            put(to, ps_load(from), lanes);
            for (int i = 0; i < lanes; ++i)
                same(what, lanes, i, bits(from[i]), of(from[i]), to[i]);
        }
        for (uint32_t first = 0; first < 1u << 16; first += 7) {
            float got[PS_LANES];
            for (int i = 0; i < lanes; ++i)
                to[i] = (uint16_t)(first + (uint32_t)i * 4099u);
            ps_store(got, get(to, lanes));
            for (int i = 0; i < PS_LANES; ++i)
                same(what, lanes, i, i < lanes ? to[i] : 0,
                     i < lanes ? bits(value(to[i])) : 0, bits(got[i]));
        }
    }
}

static int32_t within(int32_t x, int32_t low, int32_t high)
{
    return x < low ? low : x > high ? high : x;
}

static PS_KERNEL void bytes(void)
{
    static const int32_t wide[] = {0, 1, -1, 127, 128, -128, -129, 255, 256, -255, 32767, 32768,
                                   65535, 65536, -32769, INT32_MAX, INT32_MIN, 70000, -70000, 42};
    enum { WIDE = sizeof wide / sizeof *wide };
    for (int lanes = 1; lanes <= PS_LANES; ++lanes) {
        uint8_t *u = last((size_t)lanes);
        int8_t *s = last((size_t)lanes);
        int32_t *w = last(4 * (size_t)lanes), got[PS_LANES];
        for (int first = 0; first < WIDE; ++first) {
            int32_t from[PS_LANES];
            for (int i = 0; i < PS_LANES; ++i)
                from[i] = wide[(first + i) % WIDE];
            ps_store_u8(u, ps_int_load(from, PS_LANES), lanes);
            ps_store_s8(s, ps_int_load(from, PS_LANES), lanes);
            ps_int_store(w, ps_int_load(from, PS_LANES), lanes);
            for (int i = 0; i < lanes; ++i) {
                same("u8", lanes, i, (uint32_t)from[i], (uint32_t)within(from[i], 0, 255), u[i]);
                same("s8", lanes, i, (uint32_t)from[i], (uint32_t)within(from[i], -128, 127),
                     (uint32_t)s[i]);
                same("s32", lanes, i, (uint32_t)from[i], (uint32_t)from[i], (uint32_t)w[i]);
            }
            ps_int_store(got, ps_load_u8(u, lanes), PS_LANES);
            for (int i = 0; i < PS_LANES; ++i)
                same("from u8", lanes, i, 0, i < lanes ? u[i] : 0, (uint32_t)got[i]);
            ps_int_store(got, ps_load_s8(s, lanes), PS_LANES);
            for (int i = 0; i < PS_LANES; ++i)
                same("from s8", lanes, i, 0, i < lanes ? (uint32_t)s[i] : 0, (uint32_t)got[i]);
            ps_int_store(got, ps_int_load(w, lanes), PS_LANES);
            for (int i = 0; i < PS_LANES; ++i)
                same("from s32", lanes, i, 0, i < lanes ? (uint32_t)w[i] : 0, (uint32_t)got[i]);
        }
    }
}

/* Ties to even on both sides of zero, and large numbers. */
static PS_KERNEL void rounding(void)
{
    for (int i = -4000; i <= 4000; ++i) {
        float from[PS_LANES], back[PS_LANES];
        int32_t got[PS_LANES];
        for (int j = 0; j < PS_LANES; ++j)
            from[j] = (float)i * (j % 2 ? 0.25f : 131072.5f);
        ps_int_store(got, ps_to_int(ps_load(from)), PS_LANES);
        ps_store(back, ps_to_real(ps_int_load(got, PS_LANES)));
        for (int j = 0; j < PS_LANES; ++j) {
            same("to s32", 4, j, bits(from[j]), (uint32_t)(int32_t)__builtin_rintf(from[j]),
                 (uint32_t)got[j]);
            same("from s32", 4, j, (uint32_t)got[j], bits((float)got[j]), bits(back[j]));
        }
    }
}

int main(void)
{
    halves("bf16", put_bf16, get_bf16, ps_bf16_of, ps_bf16_value);
    halves("f16", put_f16, get_f16, ps_f16_of, ps_f16_value);
    bytes();
    rounding();
    puts(faults ? "wrong" : "right");
    return faults != 0;
}
