"""When speculation pays: the time of target decode, drafter decode and verify over batch, context and draft length.

Symbols, as in docs/calibrate.md: B running requests, S their mean context (tokens), gamma draft tokens per cycle,
q = gamma + 1 query tokens per request, L mean tokens gained per cycle. Times are seconds unless a name says otherwise.

    model.py        what every form offers: three times, the cycle, the speedup, the boundary paper.py        the
    published form; physical.py: ours, with parameters.py and tiles.py constants.py    what is known of a model before
    anything is measured sweep.py        measured times from a file; starved.py: rows that do not hold what they say;
    measure.py: a sweep made fit.py          our parameters from a sweep; fit_paper.py: the published form's
    validate.py     how good a model is on a sweep; crossval.py: on rows that its fit has not seen calibration.py  the
    file that a fit writes, and whom it belongs to online.py       a model that follows measured steps decisions.py
    what was decided, and why; simulate.py: decisions on made-up runs; plot.py: pictures
"""
