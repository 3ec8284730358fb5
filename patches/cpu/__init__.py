"""The CPU host: everything that slime, miles, Megatron and SGLang need to train end to end without a GPU."""
