/* Where weights come from: a file, memory, or arrays that lie apart. */
typedef struct {
    FILE *file;
    const char *at;
    size_t left;
    const void *const *parts;
    size_t done;        /* bytes taken of the next of these */
    int more;           /* what is taken next is not the end of an array */
    char *scratch;      /* for one layer's weights, where they cannot be packed from where they lie */
    uint64_t sum, sums; /* of the words taken, and of all such sums on the way */
} source;

/* A file holds zeros after every array, up to a multiple of 64 bytes. */
static size_t lines(size_t count) { return (count + 63) / 64 * 64; }

/* A checksum of whole words, as many as a file holds of `count` bytes. */
static void add(source *from, const char *bytes, size_t count)
{
    const size_t whole = count / 8 * 8;
    uint64_t word = 0;
    for (size_t i = 0; i < whole; i += 8) {
        memcpy(&word, bytes + i, 8);
        from->sum += word;
        from->sums += from->sum;
    }
    word = 0;
    if (count > whole)
        memcpy(&word, bytes + whole, count - whole);
    for (size_t i = whole; i < lines(count); i += 8, word = 0) {
        from->sum += word;
        from->sums += from->sum;
    }
}

/* Where the next `count` bytes of arrays that lie apart are. */
static const char *part(source *from, size_t count)
{
    const char *at = (const char *)*from->parts + from->done;
    from->done = from->more ? from->done + count : 0;
    from->parts += !from->more;
    return at;
}

/* The next `count` bytes, in `to`, which has room for whole lines. */
static int fill(source *from, char *to, size_t count)
{
    if (from->parts) {
        memcpy(to, part(from, count), count);
        memset(to + count, 0, lines(count) - count);
    } else if (from->file) {
        if (fread(to, 1, lines(count), from->file) != lines(count))
            return 0;
    } else {
        if (from->left < lines(count))
            return 0;
        memcpy(to, from->at, lines(count));
        from->at += lines(count), from->left -= lines(count);
    }
    add(from, to, from->parts ? count : lines(count));
    return 1;
}

/* The next `count` bytes where they lie, or else in scratch. */
PS_SCALAR const void *take(source *from, size_t count)
{
    const char *at = from->parts ? (const char *)*from->parts + from->done : from->at;
    if (at && (uintptr_t)at % 8 == 0 && (from->parts || from->left >= lines(count))) {
        if (from->parts)
            (void)part(from, count);
        else
            from->at += lines(count), from->left -= lines(count);
        add(from, at, from->parts ? count : lines(count));
        return at;
    }
    if (!from->scratch)
        from->scratch = room(@LARGEST@);
    return from->scratch && fill(from, from->scratch, count) ? from->scratch : 0;
}
