static void *room(size_t bytes)
{
    void *found = calloc(bytes + 1, 1);
    if (!found) {
        puts("out of memory");
        exit(1);
    }
    return found;
}

/* A whole file, or nothing. */
static char *contents(const char *folder, const char *name, size_t *size)
{
    char *path = room(strlen(folder) + strlen(name) + 1), *data = 0;
    sprintf(path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    if (file && !fseek(file, 0, SEEK_END)) {
        const long end = ftell(file);
        rewind(file);
        *size = end < 0 ? 0 : (size_t)end;
        data = room(*size);
        if (fread(data, 1, *size, file) != *size) {
            free(data);
            data = 0;
        }
    }
    if (file)
        fclose(file);
    if (!data)
        printf("%s: cannot be read\n", path);
    free(path);
    return data;
}
