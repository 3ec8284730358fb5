"""``april train``: a host's training loop with the overlay.

command.py reads our flags and checks what can be checked in a second; supervisor.py starts the driver and ends
everything that came of it; driver.py is the process in which the host's loop runs.
"""
