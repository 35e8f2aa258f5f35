/* Outer products of f32 by f16, whose numbers become f32 behind their load. */
#define PS_OUTER_OF ".s"
#define PS_OUTER_COUNT "cntw"
#define PS_OUTER_B(z, p, v)                                                                        \
    "ld1h {" z ".s}, " p "/z, [%[b], #" v ", mul vl]\n"                                            \
    "fcvt " z ".s, " p "/m, " z ".h\n"
#define PS_OUTER_ADD(v, p, a, b) "fmopa za" v ".s, p0/m, " p "/m, " a ".s, " b ".s\n"
