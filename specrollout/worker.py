"""SGLang's speculative worker: the target drafts for itself with quantized weights, and verifies in one pass.

A request's committed length L excludes its last token, which has no KV yet. A cycle of draft length gamma:

1. draft: gamma decode steps at positions L, L + 1, ... with the quantized weights; token i is written to slot L + i;
2. verify: the last token and the gamma drafts in one pass of the target, which overwrites slots L .. L + gamma;
3. accept: a prefix of the drafts and one token more; the new length is L + accepted + 1. A chain moves no KV.

A plain step is the target's own decode step with SGLang's own sampler. Every step may be either; results carry their
own width, so the draft length may change from step to step.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.speculative.base_spec_worker import BaseSpecWorker

from april.errors import UsageError
from april.memory import drafter as memory
from april.telemetry.events import emit
from specrollout import engine, sampling
from specrollout.agreement import Agreement
from specrollout.controller import Controller, Step
from specrollout.drafter import DrafterError, SelfDrafter
from specrollout.forward import Forward
from specrollout.hooks import WORKER
from specrollout.settings import DRAFTERS, of_environment
from specrollout.spec_input import DraftInput
from specrollout.stats import Stats
from specrollout.timing import Marks

log = logging.getLogger(__name__)

Publish = Callable[[torch.Tensor], None]
IDLE_CONTEXT = 1.0
CHECK_EVERY = 256
"""Cycles between two looks at the drafter's checksums."""
SEEN_CYCLES = 16
"""Verifications whose inputs are looked at, where inputs are scaled."""
RECORDED = 4096
"""Steps that are kept where they are recorded."""


@dataclass(slots=True)
class Unsettled:
    """A step whose accepted counts or seconds are not known yet."""

    gamma: int
    batch: int
    context: float
    marks: Marks


class QuantSelfWorker(BaseSpecWorker):  # type: ignore[misc]
    """The worker of ``QUANT_SELF``; SGLang makes one in each scheduler process."""

    def __init__(self, server_args: Any, target_worker: Any, tp_rank: int, dp_rank: int | None, **_: Any) -> None:
        settings = of_environment()
        assert settings is not None, "registered only with settings"
        self.device = str(server_args.device)
        settings = engine.settings_for(self.device, settings)
        self.settings = settings
        self.runner = target_worker.model_runner
        self.stats = Stats()
        self._target = target_worker
        self._agreement = Agreement(self.runner.tp_group, server_args.tp_size)
        self._unsettled: deque[Unsettled] = deque()
        self._alarmed: str | None = None
        self._backend = str(server_args.sampling_backend)
        self._speculated = False
        self._able = True
        self._unseen_cycles = SEEN_CYCLES if settings.scaling == "awq" else 0
        self._steps: deque[tuple[Any, ...]] | None = None
        # get_draft_kv_pool reads draft_worker.draft_runner.token_to_kv_pool: there is none.
        self._no_draft = SimpleNamespace(draft_runner=SimpleNamespace(token_to_kv_pool=None), draft_worker=None)
        self.refusal = engine.refusal(server_args, self.runner)
        self.drafter: SelfDrafter | None = None
        self._kind = settings.drafter
        if self.refusal is None:
            self.drafter = SelfDrafter(
                self.runner.model,
                settings.drafter,
                group=settings.group,
                quantize_head=settings.quantize_head,
                device=self.device,
                region=engine.region(self.runner),
            )
            self.refusal = self.drafter.reason
        self._constants = engine.constants(self.runner, server_args.tp_size, settings, self.drafter)
        running = engine.fingerprint(self._constants, self.device)
        self._name = f"{dp_rank or 0}-{engine.pid()}"
        decisions = engine.decision_log(settings.decisions) if tp_rank == 0 else None
        self.controller = Controller(settings, running, self._constants, decisions, self._name)
        if self.refusal is not None:
            log.warning("specrollout: plain decoding only: %s", self.refusal)
        engine.capture_plain_graphs(target_worker)

    # What SGLang asks of a speculative worker.

    @property
    def target_worker(self) -> Any:
        """The worker that runs the target."""
        return self._target

    @property
    def draft_worker(self) -> Any:
        """Nothing: the drafter lives in the target."""
        return self._no_draft

    @property
    def model_runner(self) -> Any:
        """The target's."""
        return self.runner

    def clear_cache_pool(self) -> None:
        """There is no KV of the drafter's own."""

    def alloc_memory_pool(self, **pools: Any) -> None:
        """The target's pools are there."""

    def init_attention_backends(self) -> None:
        """Called when the target's backend is made."""
        reason = self.refusal or engine.backend_refusal(self.runner, self.device)
        if reason is not None and self.refusal is None:
            self.refusal = reason
            log.warning("specrollout: plain decoding only: %s", reason)
        emit("speculation", engine=self._name, refusal=self.refusal)
        self._forward = Forward(self.runner, self._target, self.device)
        setattr(self.runner, WORKER, self)

    def update_weights_from_disk(self, _: Any) -> tuple[bool, str]:
        """The target has been updated; the hook on its runner has marked the drafter."""
        return True, "the drafter follows"

    def update_weights_from_ipc(self, _: Any) -> tuple[bool, str]:
        """As :meth:`update_weights_from_disk`."""
        return True, "the drafter follows"

    def update_weights_from_tensor(self, request: Any) -> Any:
        """SGLang asks the draft worker alone."""
        return self._target.update_weights_from_tensor(request)

    def on_verify_complete_cpu(self, num_correct_drafts_per_req: list[int], batch_size: int = 0) -> None:
        """A step's accepted counts have reached the host; steps come in order."""
        if self.device != "cpu" and self._unsettled:
            self._settle(self._unsettled.popleft(), num_correct_drafts_per_req)

    def forward_batch_generation(self, batch: Any, on_publish: Publish | None = None) -> GenerationBatchResult:
        """One step of a batch: a prefill, a plain step or a cycle."""
        publish = on_publish or (lambda lengths: None)
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch:
            return self._prefill(batch, publish)
        step, context = self._next(batch)
        marks = Marks(self.device)
        if step.speculate:
            result = self._cycle(batch, step.gamma, publish, marks)
            accepted = (result.accept_lens - 1).tolist() if self.device == "cpu" else None
        else:
            result = self._plain(batch, publish)
            accepted = [0] * len(batch.seq_lens)
        marks.mark()
        self._record(Unsettled(step.gamma, len(batch.seq_lens), context, marks), accepted)
        return result

    # What our hooks call.

    def weights_changed(self, path: str) -> None:
        """The target's weights were updated."""
        self.drafter_lost(path)
        self.controller.weights_changed()

    def drafter_lost(self, reason: str) -> None:
        """The drafter must be made again before its next draft."""
        if self.drafter is not None:
            self.drafter.mark_dirty(reason)

    def set_state(self, asked: Any) -> str | None:
        """Force a mode or a draft length; returns what was wrong with the request."""
        try:
            if not isinstance(asked, dict) or not set(asked) <= {"mode", "gamma", "drafter", "record"}:
                raise UsageError(f"{asked!r}: an object with mode, gamma, drafter or record is expected")
            if (kind := asked.get("drafter")) is not None:
                if self.drafter is None or kind not in DRAFTERS:
                    raise UsageError(
                        f"drafter is {kind!r}: it must be one of {', '.join(DRAFTERS)}, where there is one"
                    )
                self._kind = kind
            if self.device != "cpu" and asked.get("gamma", "auto") not in ("auto", self.settings.longest):
                raise UsageError(f"gamma is {asked['gamma']!r}: on this device each draft has {self.settings.longest}")
            self.controller.force(asked.get("mode"), asked.get("gamma"))
            if kind is not None:
                self._kind = kind
            if (record := asked.get("record")) is not None:
                self._steps = deque(maxlen=RECORDED) if record else None
        except UsageError as error:
            log.warning("specrollout: set_internal_state: %s", error)
            return str(error)
        return None

    def report(self) -> dict[str, Any]:
        """Everything measured. Recorded steps are given once: (batch, context, gamma, accepted of each, s...)."""
        found = {
            **self.stats.report(),
            **self.controller.state,
            "refusal": self.refusal,
            "drafter": self._drafter_report(),
        }
        found["constants"] = self._constants.published()
        if self._steps is not None:
            found["steps"] = list(self._steps)
            self._steps.clear()
        return found

    def _drafter_report(self) -> dict[str, Any] | None:
        if self.drafter is None:
            return None
        stats = self.drafter.stats
        found = {field.name: getattr(stats, field.name) for field in fields(stats)}
        return {**found, "dirty_reasons": dict(stats.dirty_reasons), "alarm": self.drafter.check()}

    # The steps.

    def _next(self, batch: Any) -> tuple[Step, float]:
        """Decide, on all ranks alike, and the mean context of the running requests in tokens."""
        running = len(batch.seq_lens)
        total = int(batch.seq_lens_sum if batch.seq_lens_sum is not None else batch.seq_lens.sum())
        context = total / running if running else IDLE_CONTEXT
        if self.refusal is not None or not running:
            return Step(0, self.refusal or "no request is running"), context
        step = self.controller.next(running, context)
        if step.speculate and (reason := self._fallback(batch)) is not None:
            self.stats.fallbacks[reason] += running
            step = Step(0, reason)
        step = Step(self._agreement.least(step.gamma, self._able), step.reason)
        self.stats.switches += step.speculate != self._speculated
        self._speculated = step.speculate
        return step, context

    def _fallback(self, batch: Any) -> str | None:
        """Why this batch is decoded plainly; else the drafter is ready for it."""
        assert self.drafter is not None
        reason = sampling.fallback_reason(batch.sampling_info, self._backend)
        if reason is None:
            before = self.drafter.stats.refreshes
            try:
                self.drafter.use(self._kind, len(batch.seq_lens))
                self.drafter.drafting()  # made here where it is out of date
            except DrafterError as error:
                log.error("specrollout: plain decoding: %s", error)
                reason = "drafter"
            if self.drafter.stats.refreshes > before:
                memory.mark_clean()
                log.info("specrollout: drafter made in %.3f s", self.drafter.stats.last_seconds)
        self._able = reason is None
        return reason

    def _prefill(self, batch: Any, publish: Publish) -> GenerationBatchResult:
        result = self._target.forward_batch_generation(batch)
        result.new_seq_lens = batch.seq_lens
        publish(result.new_seq_lens)
        result.next_draft_input = DraftInput(result.next_token_ids.to(torch.int64))
        return result

    def _plain(self, batch: Any, publish: Publish) -> GenerationBatchResult:
        forward = self._forward.plain_batch(batch, batch.spec_info.bonus_tokens)
        result = self._target.forward_batch_generation(None, forward_batch=forward)
        tokens = result.next_token_ids.to(torch.int64)
        lengths = batch.seq_lens + 1
        publish(lengths)
        output = result.logits_output
        if batch.return_logprob:
            output.next_token_logprobs = output.next_token_logprobs.view(-1, 1)
        result.next_token_ids = tokens
        result.accept_lens = torch.ones_like(tokens)
        result.new_seq_lens = lengths
        result.next_draft_input = DraftInput(tokens)
        result.speculative_num_draft_tokens = 1
        result.extra_keep_alive_refs = [forward]
        return result

    def _cycle(self, batch: Any, gamma: int, publish: Publish, marks: Marks) -> GenerationBatchResult:
        chain, proposed = self._draft(batch, gamma)
        marks.mark()
        return self._verify(batch, chain, proposed, publish)

    def _draft(self, batch: Any, gamma: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The last token and gamma drafts, [batch, gamma + 1], and what they were drawn from, [batch, gamma, vocab]."""
        assert self.drafter is not None
        filters = sampling.Filters.of(batch.sampling_info)
        greedy = batch.sampling_info.is_all_greedy
        tokens = [batch.spec_info.bonus_tokens.to(torch.int64)]
        proposed: torch.Tensor | None = None
        with self.drafter.drafting(), self._forward.drafts(batch, gamma) as draft:
            for place in range(gamma):
                logits = draft(tokens[-1])
                if greedy:
                    token = sampling.argmax(logits)
                else:
                    if proposed is None:
                        proposed = logits.new_empty((gamma, *logits.shape), dtype=torch.float32)
                    token = sampling.draw(sampling.probabilities(logits, filters, out=proposed[place]))
                tokens.append(self._agreement.tensor(token))
        return torch.stack(tokens, 1), None if proposed is None else proposed.transpose(0, 1)

    def _verify(
        self, batch: Any, chain: torch.Tensor, proposed: torch.Tensor | None, publish: Publish
    ) -> GenerationBatchResult:
        """``chain`` and ``proposed`` as :meth:`_draft` returns them."""
        requests, width = chain.shape
        forward = self._forward.verify_batch(batch, chain)
        with self._forward.verifying(batch, width), self._inputs_seen():
            result = self._target.forward_batch_generation(None, forward_batch=forward, is_verify=True)
        output = result.logits_output
        logits = output.next_token_logits
        if proposed is None:
            emitted, lengths = sampling.verify_greedy(chain[:, 1:], sampling.argmax(logits).view(requests, width))
        else:
            filters = sampling.Filters.of(batch.sampling_info).repeat(width)
            target = sampling.probabilities(logits, filters).view(requests, width, -1)
            emitted, lengths = sampling.verify(chain[:, 1:], proposed, target)
        emitted, lengths = self._agreement.tensor(emitted), self._agreement.tensor(lengths)
        new_lengths = batch.seq_lens + lengths
        publish(new_lengths)
        if batch.return_logprob:
            self._forward.logprobs(batch, output, emitted)
        bonus = emitted.gather(1, (lengths - 1).view(-1, 1)).view(-1)
        result.next_token_ids = emitted.reshape(-1)
        result.accept_lens = lengths
        result.new_seq_lens = new_lengths
        result.next_draft_input = DraftInput(bonus)
        result.speculative_num_draft_tokens = width
        result.extra_keep_alive_refs = [forward]
        return result

    @contextmanager
    def _inputs_seen(self) -> Iterator[None]:
        """Around the first verifications, where inputs are scaled: they show what the linears' inputs are like."""
        if self._unseen_cycles == 0 or self.drafter is None:
            yield
            return
        with self.drafter.collecting():
            yield
        self._unseen_cycles -= 1
        if self._unseen_cycles == 0:
            scaled = self.drafter.calibrate()
            log.info("specrollout: inputs of %d layers scaled", len(scaled))

    # Accounts.

    def _record(self, step: Unsettled, accepted: list[int] | None) -> None:
        if accepted is not None and self.device == "cpu":
            self._settle(step, accepted)
        else:
            self._unsettled.append(step)

    def _settle(self, step: Unsettled, accepted: list[int]) -> None:
        seconds = step.marks.seconds()
        if self._steps is not None:
            self._steps.append((step.batch, step.context, step.gamma, accepted, *seconds))
        if step.gamma == 0:
            self.stats.plain(step.batch, seconds[0])
            self.controller.plain(step.batch, step.context, seconds[0])
            if self.drafter is not None:
                self.drafter.costs.plain(step.batch, seconds[0])
            return
        draft_s, verify_s = seconds
        self.stats.cycle(step.gamma, accepted, draft_s, verify_s)
        self.controller.cycle(step.batch, step.context, accepted, step.gamma, draft_s, verify_s)
        if self.drafter is not None:
            self.drafter.observe(sum(accepted), step.gamma * len(accepted), step.batch, draft_s / step.gamma)
        self._watch()

    def _watch(self) -> None:
        alarm = self.stats.alarm()
        if alarm is None and self.drafter is not None and self.stats.cycles % CHECK_EVERY == 0:
            alarm = self.drafter.check()
        if alarm is not None and alarm != self._alarmed:
            log.error("specrollout: %s", alarm)
        self._alarmed = alarm
