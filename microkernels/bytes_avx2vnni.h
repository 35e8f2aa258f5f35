/* AVX-VNNI: sum + the four unsigned numbers of each lane by the four signed ones of x. */
enum { PS_BYTES_WHOLE = 1 }; /* of 8 bits */
PS_INLINE ps_int ps_dot_bytes(ps_int w, ps_int x, ps_int sum)
{
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(w), "x"(x));
    return sum;
}
PS_INLINE ps_int ps_int_shift(ps_int x, int count) { return _mm256_slli_epi32(x, count); }
