"""``april drafter``: what the self-drafter makes of a model."""
