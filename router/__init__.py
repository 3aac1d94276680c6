"""The router: admits requests, decides where and when they run, relays their tokens, and survives workers.

In reading order:

- `config`: its flags; `processes`: several of them behind one port; `errors`: the errors that callers see;
  `metrics`.
- `api`: the gRPC services; `auth`: who may call, and how much; `preprocess`: from text to tokens.
- `core`: every decision, as a state machine without I/O: events in, actions out.
- `links`: carries actions out, and turns what happens into events.
- `replay`: records events, and decides recordings again.

May import `chat_formats`, `output_text`, `scheduling`, `services`, `state` and the generated stubs, but
nothing that imports torch. `core` imports no other package of the router.
"""
