/* Blocks of A are rounded to 8 bits while they are packed. */
enum { PS_ROUNDED = 1 };
