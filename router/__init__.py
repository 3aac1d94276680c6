"""The router: admits requests, decides where and when they run, relays their tokens, and survives workers.

A floor imports only floors below it. From the top:

- `config`: its flags; `processes`: several of them behind one port.
- `api`: the gRPC services.
- `auth`: who may call, and how much.
- `intake`: checks, and from text to tokens.
- `links`: carries actions out, and turns what happens into events.
- `replay`: records events, and decides recordings again.
- `core`: every decision, as a state machine without I/O: events in, actions out.
- `outputs`: reads the texts of choices: content, reasoning and calls, as deltas.
- `request`: a request as received; `limits` on it; `errors`: the errors that callers see.

May import `model_output`, `runtime`, `scheduling` and the generated stubs, but nothing that imports torch.
"""
