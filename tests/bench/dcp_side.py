"""One rank of PyTorch's side of the checkpoint benchmark: torch.distributed.checkpoint (DCP) on the same
tensors, driven like checkpoint_bench.cc.

    RANK=r WORLD_SIZE=n MASTER_ADDR=... MASTER_PORT=... dcp_side.py CHANNEL

The state comes from a FULL checkpoint of ours (`init DIRECTORY`), so both sides hold the same numbers.
"""
import contextlib
import gc
import json
import mmap
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from torch.distributed.checkpoint import hf_storage
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlanner
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

CACHES = [name for name in vars(SavePlanner) if name.startswith("_cached_")]


def memory():
    fields = {}
    for path in ("/proc/self/status", "/proc/self/smaps_rollup"):
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name in ("VmRSS", "VmHWM", "Pss"):
                    fields[name] = int(value.split()[0]) * 1024
    with open("/proc/self/clear_refs", "w", encoding="utf-8") as out:
        out.write("5")
    return {"resident": fields["VmRSS"], "peak": fields["VmHWM"], "proportional": fields["Pss"]}


class Side:
    def __init__(self, rank, world):
        self.rank, self.world = rank, world
        self.mesh = init_device_mesh("cpu", (world,))
        self.state, self.kept, self.pending, self.trainer = {}, [], None, None
        self.writer_of_caches = None

    def shard(self, tensor):
        return distribute_tensor(tensor.clone(), self.mesh, [Shard(0)], src_data_rank=None)

    def init(self, directory):
        model, optimizer = {}, {}
        with safe_open(os.path.join(directory, "model.safetensors"), "pt") as file:
            for name in file.keys():
                model[name] = self.shard(file.get_tensor(name))
        path = os.path.join(directory, "optimizer.safetensors")
        if os.path.exists(path):
            with safe_open(path, "pt") as file:
                for key in file.keys():
                    name, _, part = key.removeprefix("optim.state.").rpartition(".")
                    value = file.get_tensor(key)
                    optimizer.setdefault(name, {})[part] = self.shard(value) if value.dim() else value.clone()
        self.state = {"model": model}
        if optimizer:
            groups = [{"lr": 6e-4, "betas": (0.9, 0.999), "eps": 1e-8, "params": sorted(optimizer)}]
            self.state["optim"] = {"state": optimizer, "param_groups": groups}
        return {}

    def plain_state(self):
        """The HF classes hold tensors only."""
        state = {"model": self.state["model"]}
        if "optim" in self.state:
            state["optim"] = {"state": self.state["optim"]["state"]}
        return state

    def locals(self):
        states = self.state.get("optim", {}).get("state", {})
        tensors = list(self.state["model"].values()) + [t for s in states.values() for t in s.values()]
        return [t.to_local() if isinstance(t, DTensor) else t for t in tensors]

    def bytes(self):
        return sum(t.nbytes for t in self.locals())

    def hello(self):
        return {"bytes": self.bytes(), "tensors": len(self.locals())}

    @contextlib.contextmanager
    def settings(self, style):
        """default, or tunedN: no CRC in the zip, cached plans, no garbage collection, N writer threads."""
        if style != self.writer_of_caches:
            for name in CACHES:
                getattr(SavePlanner, name).clear()
            self.writer_of_caches = style
        tuned = style.startswith("tuned")
        torch.serialization.set_crc32_options(not tuned)
        if tuned:
            gc.collect()
            gc.disable()
        try:
            yield int(style[5:]) if tuned else 1, DefaultSavePlanner(enable_plan_caching=tuned)
        finally:
            gc.enable()
            torch.serialization.set_crc32_options(True)

    def timed(self, work):
        dist.barrier()
        start = time.perf_counter()
        work()
        return {"seconds": time.perf_counter() - start}

    def save(self, style, sync, path):
        sync = sync == "1"
        if style.startswith("hf"):
            writer = hf_storage.HuggingFaceStorageWriter(path, save_distributed=True)
            writer.sync_files = sync
            return self.timed(lambda: dcp.save(self.plain_state(), storage_writer=writer))
        with self.settings(style) as (threads, planner):
            writer = dcp.FileSystemWriter(path, sync_files=sync, thread_count=threads)
            return self.timed(lambda: dcp.save(self.state, storage_writer=writer, planner=planner))

    def load(self, style, path):
        if style == "hf":
            reader, state = hf_storage.HuggingFaceStorageReader(path), self.plain_state()
        else:
            reader, state = dcp.FileSystemReader(path), self.state
        return self.timed(lambda: dcp.load(state, storage_reader=reader))

    def async_save(self, style, path):
        """style: default, gcoff (thread executor, blocking copy) or fresh (a new DefaultStager a save)."""
        self.finish()
        writer = dcp.FileSystemWriter(path, sync_files=True)
        arguments = {}
        if style == "fresh":
            arguments["async_stager"] = DefaultStager(StagingOptions(False, False, True, False))
        if style == "gcoff":
            gc.collect()
            gc.disable()
        dist.barrier()
        start = time.perf_counter()
        response = dcp.async_save(self.state, storage_writer=writer, **arguments)
        called = time.perf_counter() - start
        staged = called
        if style == "fresh":
            response.staging_completion.result()
            staged = time.perf_counter() - start
            self.pending = response.upload_completion
        else:
            self.pending = response
        self.finish()
        committed = time.perf_counter() - start
        gc.enable()
        return {"seconds": called, "staged": staged, "committed": committed}

    def finish(self):
        if self.pending is not None:
            self.pending.result()
            self.pending = None

    def train(self, style, steps, every, root):
        if self.trainer is None:
            import dcp_training
            self.trainer = dcp_training.Trainer(self.mesh, self.rank)
        return self.trainer.run(style, int(steps), int(every), root)

    def keep(self):
        self.kept = [t.clone() for t in self.locals()]
        return {}

    def poison(self):
        for tensor in self.locals():
            tensor.fill_(-1)
        return {}

    def check(self):
        return {"equal": int(all(torch.equal(a, b) for a, b in zip(self.locals(), self.kept, strict=True)))}

    def touch(self):
        size = 2 * self.bytes()
        with mmap.mmap(-1, max(size, mmap.PAGESIZE)) as memory_block:
            for at in range(0, size, mmap.PAGESIZE):
                memory_block[at] = 1
        return {}

    def memory(self):
        return memory()

    def forget(self):
        self.kept = []
        return {}


def main(channel):
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", rank=rank, world_size=world)
    side = Side(rank, world)
    mine = f"{channel}.{rank}"
    with open(mine + ".in", encoding="utf-8") as commands, open(mine + ".out", "w", encoding="utf-8") as answers:
        for line in iter(commands.readline, ""):
            verb, *arguments = line.split()
            if verb == "quit":
                break
            print(json.dumps(getattr(side, verb)(*arguments)), file=answers, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
