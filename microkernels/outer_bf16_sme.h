/* Outer products of words of two bf16: predicates count halves of words. */
#define PS_OUTER_OF ".h"
#define PS_OUTER_COUNT "cnth"
#define PS_OUTER_B(z, p, v) "ld1w {" z ".s}, " p "/z, [%[b], #" v ", mul vl]\n"
#define PS_OUTER_ADD(v, p, a, b) "bfmopa za" v ".s, p0/m, " p "/m, " a ".h, " b ".h\n"
