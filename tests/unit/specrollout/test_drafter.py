"""The drafter on layers shaped as SGLang's: nothing is touched outside a draft, and none is out of date inside one."""

import copy
import json

import pytest
import torch
import torch.nn.functional as F

from april.errors import UsageError
from april.launch.drafter import main as command
from specrollout import checksum, kinds, quantize
from specrollout.drafter import DrafterError, SelfDrafter
from specrollout.kernels import build


class UnquantizedLinearMethod:
    """As SGLang's."""

    def apply(self, layer, x, bias=None):
        return F.linear(x, layer.weight, bias)


class UnquantizedEmbeddingMethod(UnquantizedLinearMethod):
    """As SGLang's."""

    def embedding(self, layer, ids):
        return F.embedding(ids, layer.weight)


class Fp8LinearMethod(UnquantizedLinearMethod):
    """A layer that is quantized already."""


class Layer(torch.nn.Module):
    """A linear, an embedding or both."""

    def __init__(self, outputs, inputs, method=UnquantizedLinearMethod, dtype=torch.float32):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(outputs, inputs, dtype=dtype) * 0.05, requires_grad=False)
        self.quant_method = method()

    def forward(self, x):
        return self.quant_method.apply(self, x)


class LoraLayer(torch.nn.Module):
    """As SGLang's wrapper."""

    def __init__(self, base):
        super().__init__()
        self.base_layer = base

    def set_lora(self): ...

    def apply_lora(self): ...

    def forward(self, x):
        return self.base_layer(x)


class Model(torch.nn.Module):
    """Tied embeddings, three linears, a norm; the head multiplies as SGLang's logits processor has it."""

    def __init__(self, dtype=torch.float32, third=None):
        super().__init__()
        torch.manual_seed(0)
        self.embed_tokens = Layer(320, 128, UnquantizedEmbeddingMethod, dtype)
        self.norm = torch.nn.LayerNorm(128, dtype=dtype)
        self.first, self.second = Layer(256, 128, dtype=dtype), Layer(128, 256, dtype=dtype)
        self.third = third or Layer(128, 128, dtype=dtype)
        self.lm_head = self.embed_tokens

    @torch.no_grad()
    def forward(self, ids):
        x = self.embed_tokens.quant_method.embedding(self.embed_tokens, ids)
        x = self.norm(self.third(self.second(self.first(x))))
        method = self.lm_head.quant_method
        if type(method).__name__ == "UnquantizedEmbeddingMethod":
            return torch.matmul(x, self.lm_head.weight.T)
        return method.apply(self.lm_head, x, None)


IDS = torch.arange(7)


def relative(got, wanted):
    return quantize.relative_error(wanted, got)


def drafted(drafter, model):
    with drafter.drafting():
        return model(IDS)


@pytest.mark.parametrize("kind", ["w4", "w8", "mixed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_outside_a_draft_nothing_has_changed(kind, dtype):
    model = Model(dtype)
    before, state = model(IDS), copy.deepcopy(model.state_dict())
    modules, methods = list(model.named_modules()), [m.__dict__.get("quant_method") for m in model.modules()]
    drafter = SelfDrafter(model, kind)
    error = relative(drafted(drafter, model), before)
    assert (0.05 if kind != "w8" else 0.001) < error < (0.4 if kind != "w8" else 0.03)
    assert torch.equal(model(IDS), before)
    assert [m.__dict__.get("quant_method") for m in model.modules()] == methods
    assert list(model.named_modules()) == modules
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_the_methods_come_back_after_an_error():
    model = Model()
    drafter, before = SelfDrafter(model), model.first.quant_method
    with pytest.raises(RuntimeError, match="in the draft"), drafter.drafting():  # noqa: PT012
        assert model.first.quant_method is not before
        raise RuntimeError("in the draft")
    assert model.first.quant_method is before


class SiluAndMul(torch.nn.Module):
    """As SGLang's: a call goes to what the module keeps."""

    def __init__(self):
        super().__init__()
        self._forward_method = self.forward_native

    def forward_native(self, x):
        gate, up = x.chunk(2, -1)
        return F.silu(gate) * up


@pytest.mark.skipif(bool(build.missing()), reason="no native kernels on this CPU")
def test_what_is_between_the_layers_is_replaced_while_drafting():
    model = Model()
    model.gate = SiluAndMul()
    usual = model.gate.__dict__["_forward_method"]
    drafter = SelfDrafter(model)
    with drafter.drafting():
        inside = model.gate.__dict__["_forward_method"]
        assert inside is not usual
        x = torch.randn(3, 8)
        torch.testing.assert_close(inside(x), usual(x))
    assert model.gate.__dict__["_forward_method"] is usual
    assert drafter.stats.replaced == 1


def test_methods_that_were_put_there_later_come_back():
    model = Model()
    drafter = SelfDrafter(model)
    drafted(drafter, model)
    later = model.first.quant_method = UnquantizedLinearMethod()
    drafter.mark_dirty("new method")
    drafted(drafter, model)
    assert model.first.quant_method is later


def test_a_drafter_is_made_once_for_each_update():
    model = Model()
    drafter = SelfDrafter(model)
    assert drafter.stats.refreshes == 0
    first = drafted(drafter, model)
    for _ in range(3):
        assert torch.equal(drafted(drafter, model), first)
    assert drafter.stats.refreshes == 1
    sums = drafter.stats.source_checksum, drafter.stats.drafter_checksum
    model.second.weight.data.mul_(-1)
    for bucket in range(4):
        drafter.mark_dirty("tensor" if bucket else "disk")
    assert drafter.stats.refreshes == 1
    assert relative(drafted(drafter, model), first) > 0.5
    assert drafter.stats.refreshes == 2
    assert drafter.stats.dirty_reasons == {"tensor": 3, "disk": 1}
    assert drafter.stats.last_seconds > 0
    assert sums[0] != drafter.stats.source_checksum
    assert sums[1] != drafter.stats.drafter_checksum


def test_an_update_that_nobody_told_of_is_an_alarm():
    model = Model()
    drafter = SelfDrafter(model)
    assert drafter.check() is None
    drafted(drafter, model)
    assert drafter.check() is None
    model.second.weight.data += 1e-3
    assert "w4 drafter is stale" in drafter.check()
    assert "1 of 4 layers differ, the first is second" in drafter.check()
    drafter.mark_dirty("distributed")
    assert drafter.check() is None
    drafted(drafter, model)
    assert drafter.check() is None


def test_memory_that_was_lost_is_an_alarm():
    model = Model()
    drafter = SelfDrafter(model)
    wanted = drafted(drafter, model)
    for weight in drafter._kinds["w4"]._weights.values():
        for buffer in weight.buffers():
            buffer.zero_()
    assert "lost its contents" in drafter.check()
    drafter.mark_dirty("resume")
    assert torch.equal(drafted(drafter, model), wanted)


def test_a_weight_that_is_not_finite_is_named():
    model = Model()
    drafter = SelfDrafter(model)
    model.second.weight.data[3, 3] = float("nan")
    for _ in range(2):
        with pytest.raises(DrafterError, match=r"second: .*NaN or an infinity"):
            drafter.drafting()
    model.second.weight.data[3, 3] = 0
    drafted(drafter, model)


def test_each_layer_reports_what_it_really_does():
    drafter = SelfDrafter(Model(third=LoraLayer(Layer(128, 128))), quantize_head=False)
    found = {report.name: report for report in drafter.layers()}
    assert found["first"].method.startswith("w4 ")
    assert 0.05 < found["first"].error < 0.15
    assert found["first"].drafter_bytes < found["first"].source_bytes / 6
    assert found["third.base_layer"].method == "as it is: LoRA layer"
    assert found["lm_head"].method == "as it is: the head stays as it is"
    assert found["lm_head"].drafter_bytes == 0
    assert drafter.stats.bytes == sum(report.drafter_bytes for report in found.values())
    quantized = {report.name: report for report in SelfDrafter(Model(third=Layer(128, 128, Fp8LinearMethod))).layers()}
    assert quantized["third"].method == "as it is: Fp8LinearMethod: only plain weights can be quantized"
    odd = {report.name: report for report in SelfDrafter(Model(third=Layer(128, 100))).layers()}
    assert "as it is: " in odd["third"].method


def test_nothing_to_draft_with_says_why():
    model = Model(torch.float64)
    drafter = SelfDrafter(model)
    assert drafter.reason == "no kernel takes float64"
    assert SelfDrafter(Model()).reason is None
    assert SelfDrafter(torch.nn.Linear(3, 3)).reason == "the model has no linear layers"


def test_kinds_and_groups_that_there_are_not():
    with pytest.raises(ValueError, match="drafter 'w3': use w4, w8, mixed, auto"):
        SelfDrafter(Model(), "w3")
    with pytest.raises(ValueError, match="group 100: use 128, 64, 32"):
        SelfDrafter(Model(), group=100)
    with pytest.raises(ValueError, match="drafter 'w5'"):
        SelfDrafter(Model()).use("w5", 1)


def test_scaling_by_what_was_seen_lowers_the_error():
    model = Model()
    model.first.weight.data[:, ::16] *= 0.1  # so that the large inputs matter
    model.embed_tokens.weight.data[:, ::16] *= 20
    before = model(IDS)
    drafter = SelfDrafter(model, quantize_head=False)
    plain = relative(drafted(drafter, model), before)
    with drafter.collecting():
        assert torch.equal(model(IDS), before)
    found = drafter.calibrate()
    assert "first" in found
    assert relative(drafted(drafter, model), before) < 0.9 * plain
    assert drafter.check() is None
    assert drafter.stats.dirty_reasons == {"calibrated": 1}


def test_changing_the_kind_makes_each_kind_once():
    model = Model()
    drafter = SelfDrafter(model, "auto")
    assert drafter.stats.kind == "w8"
    errors = {}
    for kind in ("w8", "w4", "w8", "w4", "mixed"):
        drafter.use(kind, 1)
        errors[kind] = relative(drafted(drafter, model), model(IDS))
    assert drafter.stats.refreshes == 3
    assert errors["w8"] < errors["mixed"] < errors["w4"]
    drafter.mark_dirty("disk")
    drafter.use("w8", 1)
    drafted(drafter, model)
    assert drafter.stats.refreshes == 4


def test_auto_tries_4_bits_and_leaves_them_where_they_are_rejected():
    drafter = SelfDrafter(Model(), "auto")
    drafter._ratios = {("w8", 2): 0.6, ("w4", 2): 0.4}  # not those of so small a model
    seen = []
    for _ in range(6):
        drafter.use("auto", 2)
        seen.append(drafter.stats.kind)
        drafter.observe(990 if seen[-1] == "w8" else 300, 1000, 2, 0.01)
    assert seen == ["w8", "w4", "w8", "w8", "w8", "w8"]


def test_costs_are_measured_once_for_batches_of_a_size():
    drafter = SelfDrafter(Model(), "auto")
    costs = [drafter.costs.cost("w4", batch) for batch in (5, 6, 8, 5)]
    assert len(set(costs)) == 1
    assert costs[0] > kinds.FIXED_SHARE
    assert set(drafter._ratios) <= {("w4", 8), ("w8", 8)}


def test_costs_of_steps_follow_those_that_were_timed():
    costs = kinds.StepCosts(lambda kind, batch: {"w4": 0.2, "w8": 0.5}[kind])
    guessed = costs.cost("w4", 3)
    assert guessed == pytest.approx(kinds.FIXED_SHARE + (1 - kinds.FIXED_SHARE) * 0.2)
    for _ in range(kinds.STEPS):
        costs.plain(4, 1.0)
        costs.drafted("w8", 4, 0.6)
    costs.drafted("w8", 4, 90.0)  # one odd step changes nothing
    assert costs.cost("w8", 3) == pytest.approx(0.6)
    assert costs.cost("w4", 3) == pytest.approx(0.2 + 0.8 * 0.2)  # a fifth of a step is not in the linears
    assert costs.cost("w4", 9) == pytest.approx(guessed)
    for _ in range(kinds.STEPS):
        costs.drafted("w4", 3, 0.7)
    assert costs.cost("w4", 4) == pytest.approx(0.7)


def chooser(w4: float = 0.4, w8: float = 0.6) -> kinds.KindChooser:
    return kinds.KindChooser(lambda kind, batch: {"w4": w4, "w8": w8}[kind])


def test_8_bits_are_first_and_4_bits_are_tried_when_they_promise_more():
    auto = chooser()
    assert auto.choose("w8", 1, 0) == "w8"
    auto.observe("w8", 970, 1000)
    assert auto.choose("w8", 1, 0) == "w4"
    hopeless = chooser()
    hopeless.observe("w8", 600, 1000)
    assert hopeless.choose("w8", 1, 0) == "w8"
    no_gain = chooser(w4=0.6)
    no_gain.observe("w8", 990, 1000)
    assert no_gain.choose("w8", 1, 0) == "w8"


def test_4_bits_that_lose_are_left_and_tried_again_later():
    auto = chooser()
    auto.observe("w8", 990, 1000)
    auto.observe("w4", 400, 1000)
    assert auto.choose("w4", 1, 3) == "w8"
    assert auto.choose("w8", 1, 3 + kinds.RETRY - 1) == "w8"
    assert auto.choose("w8", 1, 3 + kinds.RETRY) == "w4"


def test_acceptance_follows_what_is_new():
    seen = kinds.Acceptance()
    assert not seen.known
    for _ in range(100):
        seen.observe(900, 1000)
    for _ in range(100):
        seen.observe(100, 1000)
    assert seen.known
    assert seen.share == pytest.approx(0.1, abs=0.01)


def test_checksums():
    tensors = [torch.randn(130, 3), torch.randn(5).bfloat16(), torch.ones(4, 4, dtype=torch.uint8)]
    before = checksum.sums(tensors)
    assert checksum.sums(tensors) == before
    tensors[0][64, 1] += 1
    after = checksum.sums(tensors)
    assert [a == b for a, b in zip(before, after, strict=True)] == [False, True, True]
    assert checksum.combined(before) != checksum.combined(after)
    assert checksum.combined([1, 2]) != checksum.combined([2, 1])
    assert checksum.sums([]) == []


def folder_of(tmp_path, tied=True, **more):
    from safetensors.torch import save_file

    tensors = {
        "model.embed_tokens.weight": torch.randn(320, 128),
        "model.layers.10.mlp.up_proj.weight": torch.randn(64, 128),
        "model.layers.2.mlp.up_proj.weight": torch.randn(64, 128),
        "model.layers.2.mlp.experts.0.up_proj.weight": torch.randn(64, 128),
        "model.norm.weight": torch.ones(128),
        **({} if tied else {"lm_head.weight": torch.randn(320, 128)}),
        **more,
    }
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"tie_word_embeddings": tied}))
    return tmp_path


@pytest.mark.parametrize("tied", [True, False])
def test_show_lists_the_layers_of_a_folder(tmp_path, capsys, tied):
    folder = folder_of(tmp_path, tied)
    assert command.run(["show", "--model", str(folder), "--drafter", "auto", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told["kinds"]) == ["w8", "w4"]
    rows = told["kinds"]["w4"]["layers"]
    names = ["model.layers.2.mlp.experts.0.up_proj", "model.layers.2.mlp.up_proj", "model.layers.10.mlp.up_proj"]
    assert [row["name"] for row in rows] == [*names, "lm_head"]
    assert rows[0]["method"] == "as it is: experts stay as they are"
    assert all(0.05 < row["error"] < 0.15 for row in rows[1:])
    assert told["kinds"]["w4"]["total"]["drafting"] == 3
    assert told["kinds"]["w8"]["total"]["mean_error"] < 0.01
    assert command.run(["show", "--model", str(folder), "--drafter", "mixed", "--no-head"]) == 0
    assert "2 of 4 layers draft" in capsys.readouterr().out


def test_show_refuses_what_is_no_model(tmp_path):
    with pytest.raises(UsageError, match=r"config\.json: No such file.*Hugging Face folder"):
        command.run(["show", "--model", str(tmp_path)])
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UsageError, match="not JSON"):
        command.run(["show", "--model", str(tmp_path)])
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match=r"neither model\.safetensors nor"):
        command.run(["show", "--model", str(tmp_path)])
    (tmp_path / "model.safetensors").write_bytes(b"no")
    with pytest.raises(UsageError, match="cannot be read as safetensors"):
        command.run(["show", "--model", str(tmp_path)])


def test_show_names_the_layer_that_is_not_finite(tmp_path):
    bad = torch.randn(64, 128)
    bad[0, 0] = float("inf")
    folder = folder_of(tmp_path, **{"model.layers.3.mlp.up_proj.weight": bad})
    with pytest.raises(DrafterError, match=r"model\.layers\.3\.mlp\.up_proj: the weight has a NaN"):
        command.run(["show", "--model", str(folder)])
