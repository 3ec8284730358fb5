"""``april patch``: what the overlay changes upstream, and whether it fits a version.

``main`` has the subcommands; ``places`` turns what a user names (a path, a version) into a source to read; ``registry``
downloads a wheel; ``matrix`` checks the versions that we support; ``tables`` prints.
"""
