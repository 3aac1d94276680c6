"""Rows of logits as their draws see them: the model's own after edits and penalties.

arguments  what rows ask for, as columns
kernel     loads a row's logits, edited, inside other kernels
"""
