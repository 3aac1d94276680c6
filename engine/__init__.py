"""What both kinds of worker run: sequences, blocks, batches, the model and the step loop."""
