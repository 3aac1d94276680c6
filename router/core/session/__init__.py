"""One request while this router holds it, from its call to its end.

Read in this order:

    session            choices, groups, moves and the session, as data
    arrive             a call comes in: a new request, or one that is known here
    deliver            step reports become tokens that clients receive
    prompt_logprobs    log-probabilities of prompts, before the first token
    recover            attempts that fail, and the next ones
    finish             groups and sessions end; a router leaves
    slo_attainment     which stated SLOs were met

`session` imports only `events` and `scheduling`; the others handle events and change `state`.
"""
