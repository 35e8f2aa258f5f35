/* Any CPU: sum + the four unsigned numbers of each lane by the four signed ones of x. */
enum { PS_BYTES_WHOLE = 1 }; /* of 8 bits */
PS_INLINE ps_int ps_dot_bytes(ps_int w, ps_int x, ps_int sum)
{
    for (int at = 0; at < 4; ++at)
        sum += (w >> 8 * at & ps_int_splat(255)) * (x << (24 - 8 * at) >> 24);
    return sum;
}
PS_INLINE ps_int ps_int_shift(ps_int x, int count) { return x << count; }
