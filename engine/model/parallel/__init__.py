"""One model in parts, each computed by a process of a group (Shoeybi et al., "Megatron-LM", 2019).

part           which part of every layer a process has, and how its results meet those of the others
cutting        cuts the weights of a loaded model to those of one part
joining        lets the results of the parts meet, once the layers have their last form
stage          keeps some of the layers, and lets activations pass from those before to those behind
adapter_share  which share of LoRA adapters belongs to these

A process may have a part of a stage: its layers are kept first, and then cut.
"""
