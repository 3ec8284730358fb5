"""The command line ``april``: set-up, training runs, quick start."""
