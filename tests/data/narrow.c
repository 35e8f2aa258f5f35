/* Conversions of narrow numbers, over arrays a vector part at a time: `lanes` used lanes, `steps`
 * parts.  Before this text: prelude, scalar, and the headers of an instruction set. */
#include <string.h>

#define EXPORT(head) head; PS_KERNEL head
#define STEPS for (int64_t i = 0; i < steps; ++i, to += lanes, from += lanes)

/* Memory to memory through a vector; unused lanes of a load must be zero, and are stored behind. */
#define LOADS(name, narrow, wide, moved)                                                           \
    EXPORT(int load_##name(wide *to, const narrow *from, int lanes, int64_t steps))                \
    {                                                                                              \
        int behind = 0;                                                                            \
        STEPS {                                                                                    \
            int32_t all[PS_LANES];                                                                 \
            ps_int_store(all, moved, PS_LANES);                                                    \
            for (int j = lanes; j < PS_LANES; ++j)                                                 \
                behind |= all[j];                                                                  \
            memcpy(to, all, (size_t)lanes * sizeof *all);                                          \
        }                                                                                          \
        return behind;                                                                             \
    }
LOADS(bf16, uint16_t, float, ps_as_int(ps_load_bf16(from, lanes)))
LOADS(f16, uint16_t, float, ps_as_int(ps_load_f16(from, lanes)))
LOADS(u8, uint8_t, int32_t, ps_load_u8(from, lanes))
LOADS(s8, int8_t, int32_t, ps_load_s8(from, lanes))
LOADS(s32, int32_t, int32_t, ps_int_load(from, lanes))

#define STORES(name, narrow, wide, vector)                                                         \
    EXPORT(int store_##name(narrow *to, const wide *from, int lanes, int64_t steps))               \
    {                                                                                              \
        STEPS ps_##vector(to, LOADED_##wide, lanes);                                               \
        return 0;                                                                                  \
    }
#define LOADED_float (lanes == PS_LANES ? ps_load(from) : ps_load_first(from, lanes))
#define LOADED_int32_t ps_int_load(from, lanes)
STORES(bf16, uint16_t, float, store_bf16)
STORES(f16, uint16_t, float, store_f16)
STORES(u8, uint8_t, int32_t, store_u8)
STORES(s8, int8_t, int32_t, store_s8)
STORES(s32, int32_t, int32_t, int_store)

EXPORT(int to_int(int32_t *to, const float *from, int lanes, int64_t steps))
{
    STEPS ps_int_store(to, ps_to_int(LOADED_float), lanes);
    return 0;
}

EXPORT(int to_real(float *to, const int32_t *from, int lanes, int64_t steps))
{
    STEPS ps_int_store((void *)to, ps_as_int(ps_to_real(LOADED_int32_t)), lanes);
    return 0;
}

EXPORT(int splat_f16(float *to, const uint16_t *from, int lanes, int64_t steps))
{
    int differ = 0;
    STEPS {
        float all[PS_LANES];
        ps_store(all, ps_splat_f16(from));
        for (int j = 1; j < PS_LANES; ++j)
            differ |= memcmp(all, all + j, sizeof *all);
        *to = *all;
    }
    return differ;
}

/* One number at a time. */
#define SCALARS(name, narrow, wide)                                                                \
    EXPORT(int name(wide *to, const narrow *from, int lanes, int64_t steps))                       \
    {                                                                                              \
        STEPS *to = ps_##name(*from);                                                              \
        return 0;                                                                                  \
    }
SCALARS(bf16_value, uint16_t, float)
SCALARS(f16_value, uint16_t, float)
SCALARS(bf16_of, float, uint16_t)
SCALARS(f16_of, float, uint16_t)

/* Sums of pairs of 16-bit numbers, two to a lane of `from`, its partner behind all of them. */
EXPORT(int pairs(int32_t *to, const int32_t *from, int lanes, int64_t steps))
{
    const int32_t *partner = from + lanes * steps;
    STEPS {
        const ps_int sum = ps_pairs(ps_int_load(from, lanes), ps_int_load(partner, lanes),
                                    ps_int_splat(7));
        ps_int_store(to, sum, lanes);
        partner += lanes;
    }
    return 0;
}

/* Whole numbers two by two, likewise. */
#define TWOS(name)                                                                                 \
    EXPORT(int int_##name(int32_t *to, const int32_t *from, int lanes, int64_t steps))             \
    {                                                                                              \
        const int32_t *other = from + lanes * steps;                                               \
        STEPS {                                                                                    \
            ps_int_store(to, ps_int_##name(ps_int_load(from, lanes), ps_int_load(other, lanes)),   \
                         lanes);                                                                   \
            other += lanes;                                                                        \
        }                                                                                          \
        return 0;                                                                                  \
    }
TWOS(add)
TWOS(xor)
TWOS(max)
TWOS(min)

int vector_lanes(void);
int flushes(void);
int flushes(void) { return FLUSHES; } /* whether the conversion to bf16 takes denormals as zeros */
int vector_lanes(void) { return PS_LANES; }
