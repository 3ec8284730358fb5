"""``april launch``: a preset, a hardware, a mode and the user's flags as one run of ``april train``.

resolve.py makes the flags and the environment of them; rules.py refuses what contradicts itself, known.py what is
misspelt; checks.py, checkpoint.py and ray_nodes.py what this machine cannot run; prepare.py makes what can be made
here; show.py prints and stores it; command.py is the command. reference.py writes docs/flags.md.
"""
