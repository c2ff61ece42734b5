"""Teach Qwen2.5-Coder-1.5B on a CPU without AMX: products with frozen weights in 8 bits.

    OMP_NUM_THREADS=2 PYTHONPATH=src python lab/runs/pasta-1.5b/second_try.py BASE OUT [STEPS]

Forward and backward products with frozen weights are in int8 (SwitchBack, arXiv 2304.13013), with
the 32 input channels of the largest values in float32; adapters, norms, attention and the output
matrix are not. Legend: N tokens, M labels, V of the vocabulary, I inputs, O outputs of a layer.
"""

import json
import random
import re
import sys
import time
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import torch
from torch import Tensor, nn

import pasta_lm.learn.data.encode as encoding
from pasta_lm.language.tags import ASYNC_CLOSE
from pasta_lm.learn.data.annotated import Record, read_ids, read_records
from pasta_lm.learn.data.encode import NO_LABEL, EncodedExample
from pasta_lm.learn.train.config import LoraConfig, ModelConfig, TrainConfig
from pasta_lm.learn.train.learner import adapted, base_of, load_learner, save_trained
from pasta_lm.learn.train.losses import collate
from pasta_lm.learn.train.packs import fill_packs
from pasta_lm.learn.train.trainer import keep_freed_memory, trim_memory

HERE = Path(__file__).parent
MAX_TOKENS, MAX_ANSWER, NUM_BLOCKS, TEXT_SHARE = 1024, 96, 2, 0.5
PROMISE, END, BOUNDARY, DECISION = 10.0, 8.0, 4.0, 3.0
RATE, TAG_RATE, WARMUP, PACKS_OF_STEP = 3e-4, 2e-3, 0.05, 2
NUM_CHANNELS = 32


# --- records


def chosen_records() -> list[Record]:
    """Return the records of the second try; see the last entry of the hypotheses."""
    rows = read_records(HERE / "records.jsonl.gz")
    import gzip

    with gzip.open(HERE / "instructions.jsonl.gz", "rt") as file:
        parts = {row["id"]: row["parts"] for row in map(json.loads, file)}
    held_out = set(read_ids(HERE / "own_text.txt"))
    kept = []
    for row in rows:
        part = parts.get(row.id, "several" if row.id.endswith("-ind") else "one")
        has_blocks = bool(row.document.blocks)
        if row.id in held_out or (part == "one" and has_blocks) or (part == "several" and not has_blocks):
            continue
        if has_blocks and (repetition(row) > 0.15 or likeness(row) > 0.6):
            continue
        kept.append(row)
    return kept


def repetition(row: Record) -> float:
    words = row.document.plain_text.split()
    grams = list(zip(words, words[1:], words[2:], words[3:], strict=False))
    return 1 - len(set(grams)) / max(1, len(grams))


def likeness(row: Record) -> float:
    sets = [set(re.findall(r"\w+", block.plain_text.lower())) for block in row.document.blocks]
    pairs = combinations([words for words in sets if len(words) > 5], 2)
    return max((len(a & b) / len(a | b) for a, b in pairs), default=0.0)


class Encoder:
    """Encodes records; of an answer without syncs two blocks are drawn, the others left unread."""

    def __init__(self, learner, train, rng: random.Random) -> None:
        self._encode, self._rng = learner.encoder(train), rng
        self._close = learner.vocabulary.piece_id(ASYNC_CLOSE)
        self._fork = encoding._Writer._fork
        self._drawn: set[int] | None = None
        self._number = 0
        encoding._Writer._fork = lambda *args: self._fork_some(*args)

    def _fork_some(self, writer, token, units, block):
        number, self._number = self._number, self._number + 1
        if self._drawn is None or number in self._drawn:
            return self._fork(writer, token, units, block)
        child = writer._thread(writer._main)
        child.units, child.block_length = units, len(block) + encoding.NUM_BLOCK_TAGS
        writer._feed_main(token, promised=child)
        return child

    def __call__(self, record: Record) -> EncodedExample:
        num, self._number = len(record.document.blocks), 0
        is_read = record.document.num_syncs > 0
        self._drawn = None if is_read else set(self._rng.sample(range(num), min(NUM_BLOCKS, num)))
        example = self._encode(record)
        end = example.num_prompt + MAX_ANSWER
        if not num and len(example) > end:
            cut = {name: getattr(example, name)[:end] for name in ("token_ids", "labels", "positions")}
            decisions = example.decisions[: sum(slot < end for slot in example.decisions)]
            example = replace(example, **cut, decisions=decisions)
        return example

    def weights(self, example: EncodedExample) -> Tensor:
        labels = torch.tensor(example.labels)
        weights = (torch.rand(len(labels)) < TEXT_SHARE).float()
        weights[list(example.decisions)] = BOUNDARY if example.rows is None else DECISION
        if example.rows is not None:
            weights[example.decisions[0]] = PROMISE
        weights[labels == self._close] = END
        weights[labels == NO_LABEL] = 0
        return weights


# --- products in 8 bits


def to_int8(rows: Tensor) -> tuple[Tensor, Tensor]:
    scales = rows.abs().amax(-1, keepdim=True).clamp_(min=1e-12) / 127
    return (rows / scales).round_().to(torch.int8), scales


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_NI, q_OI, scales_O, large, large_OC):
        ctx.save_for_backward(q_OI, scales_O)
        rows = x_NI.reshape(-1, x_NI.shape[-1])
        small, scales = to_int8(rows.index_fill(1, large, 0))
        out = torch._int_mm(small, q_OI.t()).float().mul_(scales).mul_(scales_O)
        out.addmm_(rows[:, large], large_OC.t())
        return out.view(*x_NI.shape[:-1], -1)

    @staticmethod
    def backward(ctx, grad):
        q_OI, scales_O = ctx.saved_tensors
        rows, scales = to_int8(grad.reshape(-1, grad.shape[-1]) * scales_O)
        out = torch._int_mm(rows, q_OI).float().mul_(scales)
        return out.view(*grad.shape[:-1], -1), None, None, None, None


class Linear8(nn.Module):
    def __init__(self, layer: nn.Linear, maxima_I: Tensor) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        weight = layer.weight.detach().float()
        self.large = maxima_I.topk(NUM_CHANNELS).indices
        self.large_OC = weight[:, self.large].contiguous()
        self.q_OI, scales = to_int8(weight)
        self.scales_O = scales[:, 0].clone()
        self.bias = layer.bias
        self.weight = layer.weight

    def forward(self, x: Tensor) -> Tensor:
        out = Product.apply(x, self.q_OI, self.scales_O, self.large, self.large_OC)
        return out if self.bias is None else out + self.bias.float()


def quantise(model: nn.Module, run) -> None:
    """Replace the base layers of adapters, with the largest input channels of one pass."""
    layers = {n: m for n, m in model.named_modules() if hasattr(m, "lora_A") and hasattr(m, "base_layer")}
    maxima: dict[str, Tensor] = {}

    def hook(name):
        def note(_, args):
            top = args[0].detach().reshape(-1, args[0].shape[-1]).abs().amax(0)
            maxima[name] = torch.maximum(maxima[name], top) if name in maxima else top
        return note

    hooks = [layer.base_layer.register_forward_pre_hook(hook(name)) for name, layer in layers.items()]
    with torch.no_grad():
        run()
    for handle in hooks:
        handle.remove()
    for name, layer in layers.items():
        layer._modules["base_layer"] = Linear8(layer.base_layer, maxima[name].float())
        layer.base_layer.weight.data = layer.base_layer.weight.data.bfloat16()


# --- the loss


def head_loss(hidden_MD: Tensor, labels_M, weights_M, head_VD: Tensor, ids: Tensor, rows_TD: Tensor, *, grads: bool):
    """Return the weighted sum of nats, and with grads those of hidden and rows; tags are apart."""
    total, dh, drows = 0.0, [], torch.zeros_like(rows_TD)
    for h, labels, weights in zip(hidden_MD.split(256), labels_M.split(256), weights_M.split(256), strict=True):
        logits = (h.half() @ head_VD.t()).float()
        logits[:, ids] = h @ rows_TD.t()
        log_z = torch.logsumexp(logits, 1)
        total += float(((log_z - logits.gather(1, labels[:, None])[:, 0]) * weights).sum())
        if grads:
            d = logits.sub_(log_z[:, None]).exp_()
            d[torch.arange(len(labels)), labels] -= 1
            d *= weights[:, None]
            tags = d[:, ids]
            d[:, ids] = 0
            dh.append((d.half() @ head_VD).float() + tags @ rows_TD)
            drows += tags.t() @ h
    return (total, torch.cat(dh), drows) if grads else (total, None, None)


def main(base: str, out: str, num_steps: int) -> None:
    keep_freed_memory()
    torch.manual_seed(0)
    torch.set_flush_denormal(True)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    train = TrainConfig(out=out, steps=num_steps, positions="continue", join="recompute", save="adapter", dtype="bfloat16")
    lora = LoraConfig(rank=16, alpha=32.0)
    learner = load_learner(ModelConfig(base=base), torch.float32)
    reference = base_of(learner)
    peft_model = adapted(learner, lora)
    model, rng = learner.model, random.Random(0)
    encoder = Encoder(learner, train, rng)
    records = chosen_records()
    own_ids = set(read_ids(HERE / "own_text.txt"))
    own = [learner.encoder(train)(replace(r, document=r.document.without_tags()))
           for r in read_records(HERE / "records.jsonl.gz") if r.id in own_ids]
    trained = {n: p for n, p in peft_model.named_parameters() if p.requires_grad}
    from peft.tuners.trainable_tokens import TrainableTokensLayer
    deltas = [m for m in model.modules() if isinstance(m, TrainableTokensLayer)]
    of_head = next(m for m in deltas if isinstance(m.base_layer, nn.Linear))
    rows_TD = of_head.trainable_tokens_delta["default"]
    ids = torch.tensor(of_head.token_indices["default"])
    head_VD = of_head.base_layer.weight.detach().half()
    base_model = model.base_model

    def hidden(batch):
        inputs = {k: batch[k] for k in ("input_ids", "position_ids", "pasta_pass")}
        return base_model(**inputs, use_cache=False).last_hidden_state[0]

    def own_nats() -> float:
        no_tags = torch.full_like(rows_TD, 0.0)
        total = num = 0.0
        with torch.no_grad():
            for example in own:
                batch = collate([[example]])
                labels = batch["shift_labels"][0]
                at = (labels != NO_LABEL).nonzero()[:, 0]
                h = hidden(batch)[at]
                for part, lab in zip(h.split(256), labels[at].split(256), strict=True):
                    logits = (part.half() @ head_VD.t()).float()
                    logits[:, ids] = -torch.inf
                    total += float(nn.functional.cross_entropy(logits, lab, reduction="sum"))
                num += len(at)
        return total / num

    def log(**row):
        line = json.dumps({"time": time.time(), **row})
        print(line, flush=True)
        with (folder / "log.jsonl").open("a") as file:
            file.write(line + "\n")

    def epochs():
        while True:
            packs, _ = fill_packs([encoder(r) for r in records], MAX_TOKENS, rng.randrange(1 << 30))
            log(packs=len(packs), records=len(records), tokens=sum(len(e) for p in packs for e in p))
            yield from packs

    model.eval()
    if "--check" in sys.argv:
        log(own_float=own_nats())
    quantise(peft_model, lambda: [hidden(collate([[e]])) for e in own[:4]])
    log(step=0, own=own_nats())
    names, params = zip(*trained.items(), strict=True)
    is_tag = ["trainable_tokens" in name for name in names]
    groups = [{"params": [p for p, t in zip(params, is_tag, strict=True) if t == tag], "lr": rate}
              for tag, rate in ((False, RATE), (True, TAG_RATE))]
    optimiser = torch.optim.AdamW(groups, betas=(0.9, 0.98), weight_decay=0.0)
    first = 0
    if (folder / "state.pt").exists():
        state = torch.load(folder / "state.pt")
        first = state["step"]
        optimiser.load_state_dict(state["optimiser"])
        for name, p in trained.items():
            p.data.copy_(state["weights"][name])
        rng.seed(first)
    packs = epochs()
    final = folder / "steps.txt"  # the last step may be moved while it trains
    for step in range(first, 10_000):
        last = int(final.read_text()) if final.exists() else num_steps
        if step >= last:
            break
        factor = min(1, (step + 1) / (WARMUP * last)) * min(1, (last - step) / (last * (1 - WARMUP)))
        for group, rate in zip(optimiser.param_groups, (RATE, TAG_RATE), strict=True):
            group["lr"] = rate * factor
        start, of_step = time.time(), [next(packs) for _ in range(PACKS_OF_STEP)]
        weights = [torch.cat([encoder.weights(e) for e in pack]) for pack in of_step]
        scale = 1 / sum(float(w.sum()) for w in weights)
        loss = 0.0
        for pack, weights_N in zip(of_step, weights, strict=True):
            batch = collate([pack])
            at = weights_N.nonzero()[:, 0]
            h = hidden(batch)
            total, dh, drows = head_loss(h[at].detach(), batch["shift_labels"][0, at], weights_N[at] * scale * 1024,
                                         head_VD, ids, rows_TD.detach(), grads=True)
            loss += total / 1024
            grad = torch.zeros_like(h)
            grad[at] = dh / 1024
            h.backward(grad)
            rows_TD.grad = drows / 1024 if rows_TD.grad is None else rows_TD.grad + drows / 1024
        norm = float(nn.utils.clip_grad_norm_(params, 1.0))
        optimiser.step()
        optimiser.zero_grad()
        trim_memory()
        log(step=step + 1, loss=loss, norm=norm, seconds=time.time() - start, lr=RATE * factor)
        if (step + 1) % 10 == 0:
            state = {"step": step + 1, "optimiser": optimiser.state_dict(), "weights": {n: p.detach() for n, p in trained.items()}}
            torch.save(state, folder / "state.part")
            (folder / "state.part").rename(folder / "state.pt")
        if (step + 1) % 50 == 0:
            log(step=step + 1, own=own_nats())
    log(step=step, own=own_nats())
    for layer in peft_model.modules():
        if isinstance(getattr(layer, "base_layer", None), Linear8):
            old = layer.base_layer
            layer._modules["base_layer"] = linear = nn.Linear(old.in_features, old.out_features, bias=old.bias is not None)
            linear.weight, linear.bias = old.weight, old.bias
    print(save_trained(learner, peft_model, reference, lora, train))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(next((a for a in sys.argv[3:] if a.isdigit()), "200")))
