/* Writes text by the library that language_model.py exports: `./a.out [PROMPT] [FOLDER]`. */
#include "writer.h"

#include <stdio.h>
#include <string.h>

/* Characters are a line's end, then those of ASCII from the space on. */
static int64_t token_of(char letter) { return letter < ' ' ? 0 : letter - ' ' + 1; }
static char letter_of(int64_t token) { return (char)(token ? token + ' ' - 1 : '\n'); }

static int64_t best(const float *scores)
{
    int64_t at = 0;
    for (int64_t i = 1; i < WRITER_RESULTS; ++i)
        at = scores[i] > scores[at] ? i : at;
    return at;
}

int main(int argc, char **argv)
{
    static float scores[WRITER_RESULTS];
    static int64_t tokens[4096];
    static char path[4096];
    const char *prompt = argc > 1 ? argv[1] : "The ", *why = "memory is short";
    int64_t count = 0;
    for (; prompt[count] && count < 4096; ++count)
        tokens[count] = token_of(prompt[count]);
    snprintf(path, sizeof path, "%s/writer.weights", argc > 2 ? argv[2] : ".");
    writer_model *model = writer_load(path, &why);
    writer_context *context = model ? writer_new(model) : 0;
    if (!context || writer_prefill(context, tokens, count, scores)) {
        puts(context ? "the prompt is empty, or too long" : why);
        return 1;
    }
    fputs(prompt, stdout);
    do /* until the cache is full */
        putchar(letter_of(best(scores)));
    while (!writer_decode(context, best(scores), scores));
    putchar('\n');
    writer_free(context);
    writer_unload(model);
    return 0;
}
