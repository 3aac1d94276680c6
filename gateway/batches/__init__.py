"""OpenAI's files and batches: requests that run later, on what the fleet has to spare.

In reading order:

- `endpoints`: the routes; `upload`: a file as it arrives; `lines`: its requests, checked one by one.
- `files`, `records`: what Redis keeps of files and batches, and each operation on them.
- `executor`: takes batches under a lease and runs them; `window`: how many lines run at once;
  `calls`: a line as a request to this gateway's own application, and its result as OpenAI writes it.

Any gateway of the fleet runs any batch. A batch's lease has a fence: a gateway that has lost
the lease records nothing. The result of a line is recorded once, by the script that marks the line as done.
"""
