"""``april quickstart``: reinforcement learning that visibly works on a CPU, with and without active partial rollouts.

tasks.py makes the prompts and reward.py judges the answers; tiny.py and smollm2.py make a policy, which prepare.py
keeps in the cache; recipe.py and model_flags.py say what ``april train`` is given; runs.py runs it for each mode;
report.py and pictures.py tell how it went.
"""
