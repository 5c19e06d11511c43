"""The table of a run: medians and minima, ratios, and each bar with what was reached."""
import statistics

# what, our series, the other side's series ("+": the better of them), at least this many times as fast
RATIOS = {
    "30m": [("save_sync", "sharded", "default", 2.0), ("save_sync", "sharded", "tuned1+tuned2", 1.25),
            ("save_sync", "recycled", "default", 2.0)],
    "124m": [("save_sync", "sharded", "default", 1.5), ("save_sync", "sharded", "tuned1+tuned2", 1.25)],
    "any": [("save", "sharded", "default", 3.0), ("save", "sharded", "tuned1+tuned2", 2.0),
            ("async_seconds", "ours", "default", 10.0), ("async_seconds", "ours", "fresh", 1.0),
            ("load", "verified", "classic", 5.0), ("load", "verified", "hf", 2.0)] +
           [(f"load_{pair}", "verified", other, bar) for pair in ("4_to_2", "2_to_4", "3_to_2")
            for other, bar in (("classic", 5.0), ("hf", 2.0))],
}
# what, our series, ceiling's series, at least this share of its rate
SHARES = {
    "30m": [("save_sync", "sharded", "raw", 0.70)],
    "124m": [("save_sync", "sharded", "raw", 0.80)],
    "any": [("save", "sharded", "raw", 0.60), ("load", "verified", "raw", 0.45)],
}
# what, series, what and series it is compared with, at most this many times its time
LIMITS = [("save_sync", "full", "save_sync", "sharded", 1.3), ("save", "full", "save", "sharded", 1.9),
          ("load_4_to_2", "verified", "load", "verified", 1.25), ("load_2_to_4", "verified", "load", "verified", 1.25),
          ("load_3_to_2", "verified", "load", "verified", 1.25), ("load", "verified", "load", "unverified", 1.5)]


class Report:
    def __init__(self, results):
        self.results = results
        self.failed = 0

    def best(self, workload, what, who):
        """(median, minimum) of a series, of the better one where several are named; None where not measured."""
        found = [self.results[key] for name in who.split("+") if (key := (workload, what, name)) in self.results]
        return min(((statistics.median(values), min(values)) for values in found), default=None)

    def bar(self, text, value, wanted, at_least, minimum=None):
        good = value >= wanted if at_least else value <= wanted
        self.failed += not good
        aside = f"  (of the minima {minimum:.2f})" if minimum is not None else ""
        print(f"  {'ok  ' if good else 'MISS'} {text:<64} {value:8.2f}  {'>=' if at_least else '<='} {wanted:g}{aside}")

    def series(self, workload):
        print(f"\n{workload}: seconds, median (minimum) of each")
        for what in dict.fromkeys(key[1] for key in self.results if key[0] == workload):
            if what == "memory":
                continue
            cells = [f"{key[2]} {statistics.median(values):.4f} ({min(values):.4f})"
                     for key, values in self.results.items() if key[:2] == (workload, what)]
            print(f"  {what:<16} " + "  ".join(cells))

    def compare(self, workload, what, ours, other, bar, text):
        mine, theirs = self.best(workload, what, ours), self.best(workload, what, other)
        if mine and theirs:
            self.bar(f"{what}: {ours} {text} {other}", theirs[0] / mine[0], bar, True, theirs[1] / mine[1])

    def model(self, workload):
        for what, ours, other, bar in RATIOS.get(workload, []) + RATIOS["any"]:
            self.compare(workload, what, ours, other, bar, "times as fast as DCP")
        for what, ours, other, bar in SHARES.get(workload, []) + SHARES["any"]:
            self.compare(workload, what, ours, other, bar, "share of the rate of")
        for what, ours, other_what, other, limit in LIMITS:
            mine, theirs = self.best(workload, what, ours), self.best(workload, other_what, other)
            if mine and theirs:
                self.bar(f"{what} {ours}: time against {other_what} {other}", mine[0] / theirs[0], limit, False,
                         mine[1] / theirs[1])
        for what in ("save_sync", "save"):
            one, two = self.best(workload, what, "raw_one_file"), self.best(workload, what, "raw")
            if one and two:
                print(f"       {what}: raw writes, one file against two {one[0] / two[0]:28.2f}")
        self.verification(workload)
        self.staging(workload)
        self.training(workload)
        self.memory(workload)

    def staging(self, workload):
        mine, ceiling = self.best(workload, "async_staged", "ours"), self.best(workload, "load", "memcpy")
        if mine and ceiling:
            self.bar("async_staged: ours share of the rate of memcpy", ceiling[0] / mine[0], 0.6, True,
                     ceiling[1] / mine[1])

    def training(self, workload):
        found = {who: self.best(workload, "training", who)
                 for who in ("ours_plain", "ours", "dcp_plain", "default", "gcoff+fresh")}
        if not all(found.values()):
            return
        slower = {who: found[who][0] - found["ours_plain" if who == "ours" else "dcp_plain"][0]
                  for who in ("ours", "default", "gcoff+fresh")}
        self.bar("training: % slower with a save every 10 steps",
                 100 * slower["ours"] / found["ours_plain"][0], 5, False)
        for who, bar in (("default", 1 / 3), ("gcoff+fresh", 1 / 2)):
            print(f"       training: DCP {who}, % slower {100 * slower[who] / found['dcp_plain'][0]:40.2f}")
            if slower[who] > 0:
                self.bar(f"training: our slow-down against DCP {who}", slower["ours"] / slower[who], bar, False)

    def verification(self, workload):
        for what in ("save_sync", "save"):
            hashed, plain = self.best(workload, what, "raw_hashed"), self.best(workload, what, "raw_pieces")
            mine = self.best(workload, what, "sharded")
            if hashed and plain and mine:
                self.bar(f"{what}: share of it that the checksums take", (hashed[0] - plain[0]) / mine[0], 0.15, False,
                         (hashed[1] - plain[1]) / mine[1])

    def memory(self, workload):
        values = {key[2]: found for key, found in self.results.items() if key[:2] == (workload, "memory")}
        if not values:
            return
        shards = values["shards"][0]
        print(f"       memory: MiB of state, both ranks {shards / 2**20:48.1f}")
        for kind, first in (("sync", 8), ("async", 8 + shards / 2**20)):
            beside = values[f"{kind}_beside"]
            self.bar(f"memory: {kind}: most MiB that the first save adds, both ranks", beside[0] / 2**20, first, False)
            self.bar(f"memory: {kind}: most MiB that a later one adds", max(beside[1:]) / 2**20, 8, False)
            grown = (values[f"{kind}_50"][0] - values[f"{kind}_0"][0]) / 2**20
            self.bar(f"memory: {kind}: MiB that 50 saves leave behind", grown, 4, False)

    def many(self):
        def total(who):
            save, load = self.best("many", "save", who), self.best("many", "load", who)
            return save[0] + load[0] if save and load else None

        if not (ours := total("sharded")):
            return
        for who, bar in (("default", 25), ("tuned1", None), ("tuned2", None), ("hf", 10)):
            if bar:
                self.bar(f"save + load: times as fast as DCP {who}", total(who) / ours, bar, True)
            else:
                print(f"       save + load: times as fast as DCP {who} {total(who) / ours:34.2f}")


def show(results):
    """Prints the table; returns how many bars were missed."""
    report = Report(results)
    for workload in dict.fromkeys(key[0] for key in results):
        report.series(workload)
        print()
        report.many() if workload == "many" else report.model(workload)
    return report.failed
