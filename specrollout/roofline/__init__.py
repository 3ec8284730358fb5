"""When speculation pays: a latency model of target decode, drafter decode and verify over batch, context and draft length.

Symbols, as in docs/calibrate.md: B running requests, S their mean context (tokens), gamma draft tokens per cycle,
q = gamma + 1 query tokens per request, L mean tokens gained per cycle. Times are seconds unless a name says otherwise.

    model.py      what every form offers: three times, the cycle, the speedup, the boundary
    paper.py      the published form; physical.py: ours
    sweep.py      measured times from a file; starved.py: those that do not hold what their row says
    fit.py        parameters from a sweep; fit_paper.py for the published form; validate.py, crossval.py: how good they are
    calibration.py  the file that a fit writes
    online.py     a model that follows measured steps; decisions.py: what was decided, and why
"""
