"""Cluster jobs of a run: one description, rendered for Ray, SLURM or Kubernetes."""
