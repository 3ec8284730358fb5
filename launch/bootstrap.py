"""Entry of ``make setup``: runs the set-up from the checkout, before anything is installed.

Any Python 3.8 or later will do to start it; which one makes the environment is found later, and said when missing.
"""

import os
import runpy
import sys

if __name__ == "__main__":
    if sys.version_info < (3, 8):
        found = "%d.%d" % sys.version_info[:2]
        sys.exit("setup: Python 3.8 or later is needed to start it, this is " + found + ": name one with PYTHON=...")
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    runpy.run_module("launch.environment", run_name="__main__", alter_sys=True)
