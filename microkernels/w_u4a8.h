/* w holds unsigned numbers of 4 bits in blocks with a scale and a zero point; x is rounded to 8 bits. */
enum { PS_W_BITS = 4, PS_W_STEPS = 8, PS_W_ZEROS = 1, PS_W_MIDDLE = 0 };
