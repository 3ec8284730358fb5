"""``april memory``."""
