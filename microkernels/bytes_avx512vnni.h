/* AVX512-VNNI: sum + the four unsigned numbers of each lane by the four signed ones of x. */
enum { PS_BYTES_WHOLE = 1 }; /* of 8 bits */
PS_INLINE ps_int ps_dot_bytes(ps_int w, ps_int x, ps_int sum)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
    return sum;
}
PS_INLINE ps_int ps_int_shift(ps_int x, int count) { return _mm512_slli_epi32(x, (unsigned)count); }
