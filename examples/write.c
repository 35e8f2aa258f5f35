/* Writes text by the library that language_model.py exports: `./a.out [PROMPT] [FOLDER] [TEMPERATURE]`. */
#include "writer.h"

#include <stdio.h>
#include <stdlib.h>

/* Characters are a line's end, then those of ASCII from the space on. */
static int64_t token_of(char letter) { return letter < ' ' ? 0 : letter - ' ' + 1; }
static char letter_of(int64_t token) { return (char)(token ? token + ' ' - 1 : '\n'); }

int main(int argc, char **argv)
{
    static int64_t tokens[4096];
    static char path[4096];
    const char *prompt = argc > 1 ? argv[1] : "The ", *why = "memory is short";
    const double temperature = argc > 3 ? atof(argv[3]) : 0;
    int64_t count = 0;
    for (; prompt[count] && count < 4096; ++count)
        tokens[count] = token_of(prompt[count]);
    snprintf(path, sizeof path, "%s/writer.weights", argc > 2 ? argv[2] : ".");
    writer_model *model = writer_load(path, &why);
    writer_context *context = model ? writer_new(model) : 0;
    int64_t token = -1;
    if (context) /* of the ten best characters */
        token = writer_next(context, tokens, count, temperature, 10, rand() / (RAND_MAX + 1.0));
    if (token < 0) {
        puts(context ? "the prompt is empty, or too long" : why);
        return 1;
    }
    fputs(prompt, stdout);
    while (token >= 0) { /* until the cache is full */
        putchar(letter_of(token));
        token = writer_next(context, &token, 1, temperature, 10, rand() / (RAND_MAX + 1.0));
    }
    putchar('\n');
    writer_free(context);
    writer_unload(model);
    return 0;
}
