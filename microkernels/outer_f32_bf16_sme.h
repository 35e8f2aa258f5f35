/* Outer products of f32 by bf16, whose words become f32 as they are loaded. */
#define PS_OUTER_OF ".s"
#define PS_OUTER_COUNT "cntw"
#define PS_OUTER_B(z, p, v)                                                                        \
    "ld1h {" z ".s}, " p "/z, [%[b], #" v ", mul vl]\n"                                            \
    "lsl " z ".s, " z ".s, #16\n"
#define PS_OUTER_ADD(v, p, a, b) "fmopa za" v ".s, p0/m, " p "/m, " a ".s, " b ".s\n"
