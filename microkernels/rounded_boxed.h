/* Blocks of A are rounded to bytes while they are packed. */
enum { PS_ROUNDED = 1 };
