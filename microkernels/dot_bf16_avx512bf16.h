/* Two bf16 a lane. VDPBF16PS rounds every sum to the nearest and takes denormals as zeros. */
typedef uint16_t ps_b;
typedef ps_int ps_wide;
enum { PS_WORD = 2, PS_HELD = 0 }; /* A comes from memory */
PS_SCALAR ps_b ps_b_of(uint16_t w) { return w; }
/* Words of columns that lie in two rows, zeros below a row that lacks its partner; `real` of them
 * exist, `lanes` are stored. */
PS_INLINE void ps_pair(ps_b *to, const uint16_t *even, const uint16_t *odd, int real, int lanes)
{
    __m512i words = _mm512_cvtepu16_epi32(ps_load_16bit(even, real));
    if (odd) {
        const __m512i high = _mm512_cvtepu16_epi32(ps_load_16bit(odd, real));
        words = _mm512_or_si512(words, _mm512_slli_epi32(high, 16));
    }
    if (lanes == PS_LANES)
        _mm512_storeu_si512(to, words);
    else
        _mm512_mask_storeu_epi32(to, PS_MASK(lanes), words);
}
PS_INLINE ps_wide ps_panel(const ps_b *p) { return ps_int_load((const void *)p, PS_LANES); }
PS_INLINE ps_acc ps_dot(ps_wide a, ps_wide b, ps_acc sum) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }
