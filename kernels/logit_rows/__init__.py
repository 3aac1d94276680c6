"""Rows of logits as their draws see them: the model's own after edits and penalties.

arguments  the parameters of each row's draw, as columns
kernel     loads a row's logits, edited, inside other kernels
"""
