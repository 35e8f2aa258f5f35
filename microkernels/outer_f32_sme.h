/* Outer products of f32 by f32: predicates count words, and a vector of B is read as it lies. */
#define PS_OUTER_OF ".s"
#define PS_OUTER_COUNT "cntw"
#define PS_OUTER_B(z, p, v) "ld1w {" z ".s}, " p "/z, [%[b], #" v ", mul vl]\n"
#define PS_OUTER_ADD(v, p, a, b) "fmopa za" v ".s, p0/m, " p "/m, " a ".s, " b ".s\n"
