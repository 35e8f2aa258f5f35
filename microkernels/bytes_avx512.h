/* AVX-512: sum + the four unsigned numbers of each lane by the four signed ones of x. */
enum { PS_BYTES_WHOLE = 0 }; /* of 4 bits: sums of two products fit 16 bits */
PS_INLINE ps_int ps_dot_bytes(ps_int w, ps_int x, ps_int sum)
{
    const ps_int pairs = _mm512_maddubs_epi16(w, x);
    return ps_int_add(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}
PS_INLINE ps_int ps_int_shift(ps_int x, int count) { return _mm512_slli_epi32(x, (unsigned)count); }
