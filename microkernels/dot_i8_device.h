/* Words of four 8-bit numbers, neighbours along the reduction; x is as it is. */
typedef int8_t ps_b;
enum { PS_WORD = 4, PS_FLIP = 0 };
PS_SCALAR ps_b ps_b_of(int8_t w) { return w; }
