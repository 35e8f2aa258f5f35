static int filled(const port *p, void *array, const char *path)
{
    FILE *file = fopen(path, "rb");
    const int whole = file && fread(array, 1, size_of(p), file) == size_of(p);
    if (file)
        fclose(file);
    if (!whole)
        printf("%s: expected a file of %zu bytes for %s\n", path, size_of(p), p->name);
    return whole;
}
