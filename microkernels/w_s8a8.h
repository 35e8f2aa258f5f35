/* w holds signed numbers of 8 bits in blocks with a scale; x is rounded to 8 bits. */
enum { PS_W_BITS = 8, PS_W_STEPS = 4, PS_W_ZEROS = 0, PS_W_MIDDLE = 128 };
