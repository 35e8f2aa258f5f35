/* Four numbers of 8 bits a lane; B are bytes of blocks, which rounded_blocks.h reads alone. */
typedef uint8_t ps_b;
typedef ps_vec ps_wide;
enum { PS_WORD = 1, PS_HELD = 0 }; /* A comes from memory */
PS_INLINE ps_wide ps_panel(const ps_b *p) { return (void)p, ps_zero(); }
PS_INLINE ps_acc ps_dot(ps_wide a, ps_wide b, ps_acc sum) { return ps_fma(a, b, sum); }
/* Numbers become unsigned; of eight of 4 bits the first four come into the low halves of bytes. */
PS_SCALAR void ps_w_pack(ps_b *restrict to, const uint8_t *restrict w)
{
    for (int at = 0; at < 4; ++at) {
        const int first = w[at / 2] >> 4 * (at % 2) & 15, second = w[2 + at / 2] >> 4 * (at % 2) & 15;
        const int number = PS_W_BITS == 8 ? w[at] ^ PS_W_MIDDLE
                                          : (first ^ PS_W_MIDDLE) | (second ^ PS_W_MIDDLE) << 4;
        to[at] = (uint8_t)number;
    }
}
