"""Baton on a CPU beside other engines, and beside the limits of the machine: `python -m benchmarks cpu`.

- `command`: the parts of a measurement, and how they are chosen
- `floors`: how fast the machine reads memory and multiplies matrices, and what a model needs of both
- `engines`: a fleet, and engines in processes of their own, and what each of them is given
- `arms`: what is compared; `comparison`: engines in turns; `tables`: what is printed
- `shares`: where the time of a step goes
- `steps`: native ops beside PyTorch alone
- `random_model`: Llamas of 200 and 500 million random weights
"""
