"""Rows of logits as their draws see them: after edits and penalties, from the model's own."""
