/* What a caller keeps in ZA while a run takes place; the headers of a unit of SME stand ahead. */
#include <stdio.h>
#include <string.h>

static _Alignas(64) unsigned char before[64 * 64], saved[64 * 64];
static struct {
    void *buffer;
    uint16_t slices;
    unsigned char zeros[6];
} block = {saved, 64, {0}};

/* ZA holds `before`, and may be saved at the block. */
static void keep(void)
{
    __asm__ volatile(".arch_extension sme\n"
                     "smstart za\n"
                     "mov w12, #0\n"
                     "1: ldr za[w12, 0], [%[from]]\n"
                     "add w12, w12, #1\n"
                     "add %[from], %[from], #64\n"
                     "cmp w12, #64\n"
                     "b.lo 1b\n"
                     "msr s3_3_c13_c0_5, %[block]\n"
                     :
                     : [from] "r"((void *)before), [block] "r"(&block)
                     : "x12", "cc", "memory");
}

static PS_KERNEL int wrong(void)
{
    static const ps_tile t = {.rows = 2, .vecs = 1, .wrap = 2, .lanes = PS_LANES, .a_inner = 3,
                              .c_inner = PS_LANES, .c_col = 1};
    static const ps_a a[2][3] = {{1, 2, 3}, {4, 5, 6}};
    static const ps_b b[3][PS_LANES] = {{1, 0, 0, 2}, {0, 1, 0, 3}, {0, 0, 1, 4}};
    static const ps_y want[2][PS_LANES] = {{1, 2, 3, 20}, {4, 5, 6, 47}};
    ps_y c[2][PS_LANES];
    ps_acc acc[2];
    uint64_t left;
    for (int i = 0; i < 64 * 64; ++i)
        before[i] = (unsigned char)(i * 37 + i / 64);
    keep();
    ps_begin(acc, t, c[0], 0);
    ps_run(acc, t, 3, a[0], b[0], 3, 1);
    ps_end(acc, t, c[0], 0);
    __asm__ volatile("mrs %0, s3_3_c13_c0_5" : "=r"(left));
    return left || memcmp(c, want, sizeof c) || memcmp(before, saved, sizeof before);
}

int main(void)
{
    puts(wrong() ? "wrong" : "right");
    return 0;
}
