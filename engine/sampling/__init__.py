"""How the next token of each row of a batch is drawn.

    sampling_table   the sampling parameters of a batch as columns, and the tokens that grammars and bad words
                     allow
    penalties        which tokens each row has seen, and what that does to its logits
    logit_filters    top-k, top-p and min-p
    sampler          draws the tokens of a step, on a GPU without waiting for it; its noise is a function of
                     seed, choice and index
    prompt_logprobs  log-probabilities of a prompt's own tokens

Of the engine it imports `engine.device`, and sequence groups from `engine.core`.
"""
