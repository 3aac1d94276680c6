"""The text of generated tokens, and where a choice ends. Workers use it to generate, routers to resume.

In reading order: `output` (one choice), `stop` (stop strings), `reasoning` (where they do not count),
`detokenizer` (token ids to text), `token_sizes` (how few tokens a text can have), `model_files` (a model's
files, read and refused).
"""
