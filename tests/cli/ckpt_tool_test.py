"""tessera-ckpt from the outside, and the format as FORMAT.md tells it to a reader of another language.
Arguments: tessera-ckpt, tests/data/golden_v1, FORMAT.md."""
import json
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import textwrap
import unittest

TOOL, GOLDEN, FORMAT = sys.argv[1:4]
GOLDEN = pathlib.Path(GOLDEN)


def run(*arguments):
    done = subprocess.run([TOOL, *map(str, arguments)], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


class Tool(unittest.TestCase):
    def setUp(self):
        self.temp = tempfile.TemporaryDirectory()
        self.addCleanup(self.temp.cleanup)
        self.root = pathlib.Path(self.temp.name)
        self.dir = self.root / "step-00000060"
        shutil.copytree(GOLDEN / "sharded", self.dir)
        self.shard = self.dir / "shard-00002-model-00001-of-00001.safetensors"

    def test_inspect_text(self):
        code, out, err = run("inspect", self.dir)
        self.assertEqual((code, err), (0, ""))
        for part in ("kind sharded, step 60", "world size 2", "model.a.weight", "[7, 5]", "rank 0: rows 0-4, rank 1: rows 4-7",
                     "optim.state.a.weight.sum", "= 3", "one value a rank", "head.weight = embed.weight",
                     "optimizer.groups.0.options.lr = 0.25", "items.epoch = 4"):
            self.assertIn(part, out)

    def test_inspect_json(self):
        code, out, _ = run("inspect", self.root, "--json")  # the newest checkpoint of the run
        self.assertEqual(code, 0)
        data = json.loads(out)
        self.assertEqual((data["kind"], data["step"], data["world_size"]), ("sharded", 60, 2))
        tensors = {t["key"]: t for t in data["tensors"]}
        self.assertEqual(tensors["model.a.weight"]["bytes"], 7 * 5 * 4)
        self.assertEqual(tensors["optim.state.scale.step"]["integer"], 3)
        self.assertEqual(data["scalars"]["optimizer"]["groups"][0]["options"]["initial_accumulator_value"], 0.5)

    def test_verify_good(self):
        for kind in ("sharded", "full", "local"):
            code, out, err = run("verify", GOLDEN / kind)
            self.assertEqual((code, err), (0, ""), out)
            self.assertIn("good", out)

    def test_verify_damaged(self):
        data = bytearray(self.shard.read_bytes())
        data[-1] ^= 1
        self.shard.write_bytes(data)
        code, out, _ = run("verify", self.dir)
        self.assertEqual(code, 1)
        self.assertRegex(out, r"shard-00002.*bytes \d+ to \d+, in tensor '.*'")
        self.assertIn("DAMAGED", out)
        self.shard.write_bytes(data[:-1])
        self.assertEqual(run("verify", self.dir)[0], 1)
        self.shard.unlink()
        self.assertIn("missing", run("verify", self.dir)[1])
        (self.dir / "extra.safetensors").write_text("x")
        self.assertIn("extra.safetensors: stray", run("verify", self.dir)[1])

    def test_a_damaged_manifest_is_one_message(self):
        manifest = self.dir / "manifest.json"
        text = manifest.read_text()
        manifest.write_text(text.replace('"step":60', '"step":61'))
        for command in ("inspect", "verify"):
            code, out, err = run(command, self.dir)
            self.assertEqual(code, 1)
            self.assertIn("seal", out + err)
        manifest.write_text(text[:1000])
        self.assertEqual(run("inspect", self.dir)[0], 1)

    def test_usage(self):
        for arguments in ((), ("verify",), ("inspect", self.root / "absent"), ("verify", self.root / "absent"),
                          ("frobnicate",), ("inspect", self.dir, "--jsn"), ("inspect", TOOL)):
            code, out, err = run(*arguments)
            self.assertEqual(code, 2, arguments)
            self.assertTrue(err, arguments)
        empty = self.root / "empty"
        empty.mkdir()
        self.assertEqual(run("inspect", empty)[0], 2)
        code, out, _ = run("--help")
        self.assertEqual(code, 0)
        self.assertIn("Exit codes", out)


class Format(unittest.TestCase):
    def reader(self):
        text = pathlib.Path(FORMAT).read_text()
        code = textwrap.dedent(text.split("## A reader in Python\n", 1)[1])
        scope = {}
        exec(code, scope)  # the reader as the document prints it
        return scope["read"]

    def test_the_documented_reader_reads_every_kind(self):
        read = self.reader()
        for kind in ("sharded", "full", "local"):
            manifest, tensors = read(GOLDEN / kind)
            self.assertEqual(manifest["head"]["kind"], kind)
            dtype, shape, data, _ = tensors["model.a.weight"]
            self.assertEqual((dtype, shape), ("F32", [7, 5]))
            values = struct.unpack("<35f", data)
            self.assertEqual(values, tuple((i + 1000) / 256 - 2 for i in range(35)))
            dtype, shape, data, _ = tensors["optim.state.a.weight.sum"]
            self.assertEqual(struct.unpack("<35f", data), (0.5,) * 35)
            dtype, shape, data, exact = tensors["optim.state.a.weight.step"]
            self.assertEqual((dtype, shape, struct.unpack("<f", data), exact), ("F32", [], (3.0,), 3))
            self.assertEqual(tensors["model.codes"][2], bytes(range(21)))

    def test_full_files_are_plain_safetensors(self):
        raw = (GOLDEN / "full" / "model.safetensors").read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        header = json.loads(raw[8:8 + length])
        self.assertEqual(header["a.weight"]["shape"], [7, 5])
        begin, end = header["a.weight"]["data_offsets"]
        values = struct.unpack("<35f", raw[8 + length + begin:8 + length + end])
        self.assertEqual(values[34], (34 + 1000) / 256 - 2)

    def test_sharded_files_carry_the_offsets_of_pytorch(self):
        for shard, rows in ((1, 0), (2, 4)):
            raw = (GOLDEN / "sharded" / f"shard-0000{shard}-model-00001-of-00001.safetensors").read_bytes()
            (length,) = struct.unpack("<Q", raw[:8])
            header = json.loads(raw[8:8 + length])
            metadata = header.pop("__metadata__")
            self.assertEqual((metadata["format"], metadata["DCP_VERSION"]), ("pt", "1.0"))
            info = json.loads(metadata["DCP_SHARDING_INFO"])
            self.assertEqual(set(info), set(header))
            self.assertEqual(info["model.a.weight"]["saved_offsets"], [rows, 0])
            for name, entry in header.items():  # no empty box but of a tensor without elements
                self.assertTrue(entry["data_offsets"][0] < entry["data_offsets"][1] or name.endswith(("empty", "empty.sum")), name)
                self.assertEqual(len(info[name]["saved_offsets"]), len(entry["shape"]))
        self.assertEqual(info.get("model.scale", {}).get("saved_offsets", []), [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
