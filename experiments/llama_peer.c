/* llama.cpp for language_models.py: a model, the tokens that it reads, and logits behind the last. */
#include <llama.h>

#include <stdlib.h>
#include <string.h>

struct peer {
    struct llama_model *model;
    struct llama_context *context;
};

static void be_silent(enum ggml_log_level level, const char *text, void *data)
{
    (void)level, (void)text, (void)data;
}

struct peer *peer_open(const char *path, int threads, int context)
{
    struct peer *peer = malloc(sizeof *peer);
    struct llama_context_params how = llama_context_default_params();
    llama_log_set(be_silent, 0);
    llama_backend_init();
    how.n_ctx = how.n_batch = how.n_ubatch = (uint32_t)context;
    how.n_threads = how.n_threads_batch = threads;
    peer->model = llama_model_load_from_file(path, llama_model_default_params());
    peer->context = peer->model ? llama_init_from_model(peer->model, how) : 0;
    return peer->context ? peer : 0;
}

/* Forget all tokens from a position on. */
void peer_rewind(struct peer *peer, int position)
{
    llama_memory_seq_rm(llama_get_memory(peer->context), 0, position, -1);
}

int peer_read(struct peer *peer, int *tokens, int count, float *logits)
{
    const int why = llama_decode(peer->context, llama_batch_get_one(tokens, count));
    const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(peer->model));
    if (!why)
        memcpy(logits, llama_get_logits_ith(peer->context, -1), (size_t)vocabulary * sizeof *logits);
    return why;
}
