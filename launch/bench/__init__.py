"""``april bench``: what active partial rollouts bring on a real server, against the host's own rollout functions.

trace.py draws response lengths; rollout.py runs inside the host and plays one round of each mode in turn; forced.py
makes each response as long as the trace says; server.py speaks to the engines and measures their step time; account.py,
bound.py and report.py are the arithmetic; runs.py starts ``april train`` and follows it; pictures.py draws.
"""
