"""``april calibrate``: fits the latency model of a device and a model, and asks it."""
