"""Requests that stay in the engine over a weight update (``--april-interrupt retract|inplace``).

SGLang pauses in three modes (``/pause_generation``): ``abort``, ``retract`` (running requests go back to its queue and
their KV is freed) and ``in_place`` (everything stays). After the last two it refuses to flush its cache, because
requests are left, and an assertion makes a crash of that at the next weight update (sglang#33783, miles#1497). Here:

* ``scheduler``: a paused scheduler whose requests are all queued counts as idle, so that it can be flushed and its
  memory released; one paused in place drops what no request uses; after the update it tells which of its KV is older
  than its weights; and each token of an answer says which weights wrote it (``token_versions``).
* ``tokenizer``: a paused server answers its health check, for which it would otherwise have to generate.
* ``hosts``: the host's own pause around its weight update is in the same mode.

It can go when SGLang flushes and updates with queued requests, and reports a version for each token.
"""
