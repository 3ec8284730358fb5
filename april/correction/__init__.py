"""Off-policy correction: what the tokens of older policy versions weigh in the host's loss. See docs/correction.md.

The way of a version from the engine to the loss:

1. ``april.rollout`` knows the leg of each token. It hands the lags to the trainer in the response's length (``lags``).
2. The host's loss calls ``hook.correct`` by its ``--custom-tis-function-path``, with those lengths.
3. ``weights`` turns lags and log probabilities into weights; it alone does arithmetic, on plain tensors.

``settings`` and ``lags`` know no torch; ``host`` says what a host must offer, and sets its flags.
"""
