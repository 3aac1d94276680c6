"""Commands for developers:

- `house`: measure the structure of the code; `document`: generate the lists of flags, metrics and calls
- `site`: build a site from the documents
- `make_profile`: measure this machine for the simulator; `train_demo_model`: make the demo checkpoint
- `try_models`: try every model type of transformers, and list which are served
- `record`: record a terminal as an SVG that plays by itself
- `minimal_root`: copy what an image needs while it is built; `lint_chart`: render and validate the Helm chart

`tests/house/walls.py` lists what they may import. No package imports them, only tests.
"""
