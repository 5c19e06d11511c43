"""The same GPT under FSDP2 with a fused AdamW, saving through dcp.async_save every so many steps."""
import gc
import os
import shutil
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard

VOCAB, WIDTH, LAYERS, HEADS, CONTEXT = 8192, 512, 8, 8, 256
BATCH, LENGTH = 4, 128


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.attention_out = nn.Linear(WIDTH, WIDTH)
        self.mlp_norm = nn.LayerNorm(WIDTH)
        self.mlp_in = nn.Linear(WIDTH, 4 * WIDTH)
        self.mlp_out = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden):
        samples, length, _ = hidden.shape
        qkv = self.qkv(self.attention_norm(hidden)).view(samples, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        hidden = hidden + self.attention_out(mixed.transpose(1, 2).reshape(samples, length, WIDTH))
        return hidden + self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(hidden)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens):
        hidden = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            hidden = block(hidden)
        return F.linear(self.norm(hidden), self.tokens.weight)


class Trainer:
    def __init__(self, mesh, rank):
        torch.manual_seed(3)
        self.rank, self.pending, self.step_number = rank, None, 0
        # The saving thread's collectives must not mix with those of training.
        self.group = dist.new_group(backend="gloo")
        self.model = Gpt()
        for parameter in self.model.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, 0, 0.02)
        for block in self.model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=6e-4, fused=True)

    def step(self):
        self.step_number += 1
        tokens = (torch.arange(BATCH * (LENGTH + 1)) * (7919 + 2 * self.rank) + self.step_number * 104729) % VOCAB
        tokens = tokens.view(BATCH, LENGTH + 1)
        logits = self.model(tokens[:, :LENGTH])
        F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def save(self, style, path):
        self.finish()
        model, optimizer = get_state_dict(self.model, self.optimizer)
        arguments = {}
        if style == "fresh":
            arguments["async_stager"] = DefaultStager(StagingOptions(False, False, True, False))
        response = dcp.async_save({"model": model, "optim": optimizer},
                                  storage_writer=dcp.FileSystemWriter(path), process_group=self.group,
                                  **arguments)
        self.pending = (getattr(response, "upload_completion", response), path)

    def finish(self):
        if self.pending is not None:
            future, path = self.pending
            future.result()
            self.pending = None
            dist.barrier()
            if self.rank == 0:
                shutil.rmtree(path)

    def run(self, style, steps, every, root):
        """Seconds of `steps` steps with a save before every `every`-th; what is still under way counts too."""
        if style == "gcoff":
            gc.collect()
            gc.disable()
        dist.barrier()
        start = time.perf_counter()
        for index in range(steps):
            if every and index % every == 0:
                self.save(style, os.path.join(root, f"dcp-step-{self.step_number}"))
            self.step()
        self.finish()
        seconds = time.perf_counter() - start
        gc.enable()
        return {"seconds": seconds}
