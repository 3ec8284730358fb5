"""Presets: small YAML files that extend each other, and ``april presets``.

files.py reads them; catalog.py finds them by name; main.py lists and shows them. ``april.configs.presets`` holds ours.
"""
