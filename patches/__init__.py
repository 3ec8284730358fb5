"""Run-time patches for what official hooks of slime, miles, SGLang and Megatron cannot do.

``table.py`` lists them all; ``boot.install`` arms them in a process; each applies when its target module is imported
and is then reported in the process's receipt.
"""
