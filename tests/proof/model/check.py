"""`make model`: the protocol's models searched exhaustively by spin, and wrong versions of them that must be found.

There are four: the protocol, deltas that are written once, destinations, and destinations of sinks with keys.

A scenario is one search through every interleaving that its settings allow. It fails on a violated assertion, on a
line that comes to rest unfinished, or on a search that is not complete; what led there is told as a story. A plant is a
mistake put into the model, searched for in a small scenario: one that is not found is a hole in the model.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

PROTOCOL = Path(__file__).with_name("protocol.pml")
WRITTEN_ONCE = Path(__file__).with_name("written_once.pml")
OUTSIDE = Path(__file__).with_name("outside.pml")
KEYED = Path(__file__).with_name("keyed.pml")
DEPTH = 100_000
MEMORY_MB = 9_000
"""For each of the two searches that run at once."""


@dataclass(frozen=True)
class Scenario:
    """What is searched, in words and as the model's settings; `live` asks whether every fair run ends."""

    name: str
    what: str
    settings: dict[str, int]
    live: bool = False
    model: Path = PROTOCOL


@dataclass(frozen=True)
class Found:
    """What a search said: the error, if any, with the story that led there."""

    error: str | None
    story: str
    complete: bool
    states: int
    depth: int
    seconds: float


def scenario(name: str, what: str, live: bool = False, **settings: int) -> Scenario:
    """A scenario in which nothing goes wrong but what its settings say."""
    quiet = {"ACTORS": 2, "CRASHES": 0, "LOST": 0, "NOES": 0, "VOIDS": 0}
    return Scenario(name, what, {**quiet, **settings}, live)


def once(name: str, what: str, **settings: int) -> Scenario:
    """A scenario of deltas that are written once; there nothing goes wrong unless a setting says so."""
    return Scenario(f"once-{name}", what, settings, model=WRITTEN_ONCE)


def outside(name: str, what: str, **settings: int) -> Scenario:
    """A scenario of destinations, with two actors that may stop for good."""
    return Scenario(f"steps-{name}", what, settings, model=OUTSIDE)


def keyed(name: str, what: str, **settings: int) -> Scenario:
    """A scenario of a destination of a sink with keys, with two actors that may stop for good."""
    return Scenario(f"keys-{name}", what, settings, model=KEYED)


SCENARIOS = [
    scenario("line", "3 transactions, 3 actors, 2 tasks that die or become zombies", N=3, ACTORS=3, CRASHES=2),
    scenario("runs", "a run is lost, one is cleared at its work", N=2, CRASHES=1, LOST=1, RESUMES=1),
    scenario("slices", "2 slices each, whose last voters meet", N=2, S=2, ACTORS=3, CRASHES=1),
    scenario("gates", "a no or an abort, a void, a misfit in a group", N=3, NOES=1, VOIDS=1, MISFITS=1),
    scenario("halts", "each failure halts; a void, a clear", N=3, NOES=1, VOIDS=1, RESUMES=1, MAX_FAILURES=1),
    scenario("plans", "Kafka's log grows while it is planned", N=3, LOG=3, CRASHES=1, NOES=1),
    scenario("revisions", "two beside the line, of one transaction or of two", N=2, REVISIONS=2, CRASHES=1, NOES=1),
    scenario("outside", "one sink in another database", N=3, OUTSIDE=1, CRASHES=2),
    scenario("outside-voided", "the same, a no or an abort, a void", N=2, OUTSIDE=1, CRASHES=1, NOES=1, VOIDS=1),
    scenario("outside-revised", "the same, and two revisions", N=2, OUTSIDE=1, REVISIONS=2, CRASHES=1),
    scenario("live", "no run in circles: fair actors end the line", live=True, N=2, CRASHES=1, LOST=1, NOES=1),
    once("writers", "a task's second attempt, 2 jobs that die or become zombies", N=1, ACTORS=3, SECONDS=1, CRASHES=2),
    once("epochs", "a no or an abort; writers of an epoch that is over", N=2, SECONDS=1, CRASHES=1, NOES=1),
    once("gates", "the same, gates asked before leftovers are removed", N=2, GATES_FIRST=1, CRASHES=1, NOES=1),
    once("slices", "2 slices each, whose last voters meet", N=2, S=2, SECONDS=1, CRASHES=1),
    once("sinks", "2 sinks, written in a database transaction each", N=2, SINKS=2, SECONDS=1, CRASHES=1),
    once("drivers", "one started twice, one takes 2 attempts", N=1, DRIVERS=1, SECONDS=1, CRASHES=1, DOUBTFUL=1),
    once("shuffled", "spans of offsets say nothing", N=2, DRIVERS=1, SECONDS=1, SPANS=0),
    once("groups", "a void, and one that does not fit, in a group", N=3, VOIDS=1, MISFITS=1),
    once("voids", "a void, a no or an abort", N=2, VOIDS=1, CRASHES=1, NOES=1),
    once("narrow", "2 voids, one transaction in flight", N=2, VOIDS=2, CRASHES=1, IN_FLIGHT=1),
    once("revisions", "2 of one transaction, which may be void", N=1, REVISIONS=2, VOIDS=1, CRASHES=1),
    once("revised", "2, of one transaction or of two, beside the line", N=2, REVISIONS=2),
    once("compacted", "2 revisions, rows merged, deltas compacted", N=2, REVISIONS=2, MERGES=1, COMPACTIONS=1),
    outside("line", "3 transactions in groups, 3 actors", N=3, ACTORS=3),
    outside("groups", "2 of them, a no or an abort, a void, a misfit", DESTINATIONS=2, ABORTS=1, VOIDS=1, MISFITS=1),
    outside("revised", "2 revisions, of one transaction or of two", N=2, DESTINATIONS=2, REVISIONS=2),
    outside("gone", "one of 2 destinations is lost, and perhaps detached", DESTINATIONS=2, GONE=1, DETACHES=1),
    outside("attached", "one is detached, and attached twice", ACTORS=3, DETACHES=1, ATTACHES=2),
    outside("attached-revised", "the same, and a revision", N=2, REVISIONS=1, DETACHES=1, ATTACHES=2),
    outside("foreign", "somebody moves a mark", N=2, REVISIONS=1, FOREIGN=1, DETACHES=1, ATTACHES=1),
    outside("back", "a destination's own backup comes back", N=2, REVISIONS=1, BACKS=1, DETACHES=1, ATTACHES=1),
    outside("restored", "a backup comes in place of the ledger", N=2, RESTORES=1, DETACHES=1, ATTACHES=1),
    outside("restored-revised", "the same, and a revision", N=1, REVISIONS=1, RESTORES=1, DETACHES=1, ATTACHES=1),
    outside("restored-alone", "the same, without a person", N=2, REVISIONS=1, RESTORES=1),
    outside("restored-both", "backups come in place of both", N=2, RESTORES=1, BACKS=1),
    keyed("line", "groups and a revision, 3 actors", ACTORS=3, REVISIONS=1),
    keyed("revised", "2 revisions, of one transaction or of two", REVISIONS=2),
    keyed("compacted", "deltas are merged; detached, attached", REVISIONS=1, COMPACTIONS=2, DETACHES=1, ATTACHES=1),
    keyed("restored", "a backup of the ledger", N=1, REVISIONS=1, RESTORES=1, DETACHES=1, ATTACHES=1),
]

PLANTS = {
    1: {},
    2: {"NOES": 1},
    3: {"NOES": 1, "LOST": 1},
    4: {},
    5: {"VOIDS": 1},
    6: {"NOES": 1},
    7: {},
    8: {"N": 1, "ACTORS": 3, "CRASHES": 0, "REVISIONS": 2},
    9: {"NOES": 1, "LOST": 1},
    10: {"OUTSIDE": 1},
    11: {"OUTSIDE": 1, "VOIDS": 1},
    12: {"OUTSIDE": 1},
    13: {"LOG": 2},
    14: {"LOG": 3, "NOES": 1},
}
"""What each mistake in the protocol's model needs besides two transactions and a crash to show itself."""

PLANTS_ONCE = {
    20: {},
    21: {"CRASHES": 1},
    22: {"VOIDS": 1},
    23: {"REVISIONS": 1},
    24: {"SECONDS": 1, "DOUBTFUL": 1},
    25: {"DRIVERS": 1, "SPANS": 0},
    26: {"N": 2, "GATES_FIRST": 1, "CRASHES": 1},
    27: {"SECONDS": 1},
    28: {},
    29: {},
    30: {"NOES": 1, "CRASHES": 2},
    31: {"REVISIONS": 1, "MERGES": 1},
    32: {"REVISIONS": 1, "COMPACTIONS": 1},
    33: {"VOIDS": 1, "CRASHES": 1},
    34: {"CRASHES": 2},
    35: {"STRICT": 1, "GATES_FIRST": 1, "CRASHES": 1},
    36: {"REVISIONS": 2},
    37: {"N": 2, "REVISIONS": 1},
    38: {"NOES": 1},
    39: {"NOES": 1},
    40: {"SECONDS": 1},
    41: {"REVISIONS": 1},
    42: {"N": 2, "REVISIONS": 1},
}
"""What each mistake needs besides one transaction. Votes and gates do not complain, so that readers have to see it."""


PLANTS_OUTSIDE = {
    60: {},
    61: {"RESTORES": 1},
    62: {"DETACHES": 1, "ATTACHES": 2},
    63: {"DETACHES": 1, "ATTACHES": 2},
    64: {"DETACHES": 1, "ATTACHES": 1},
    65: {},
    66: {},
    67: {},
    68: {},
    69: {"VOIDS": 1},
    70: {},
    71: {"DETACHES": 1},
    72: {"RESTORES": 1},
    73: {"REVISIONS": 1, "BACKS": 1},
    74: {"N": 1, "REVISIONS": 1, "RESTORES": 1, "DETACHES": 1},
    75: {"N": 1, "REVISIONS": 1, "RESTORES": 1, "DETACHES": 1},
    76: {"N": 1, "REVISIONS": 1},
    77: {"REVISIONS": 1, "BACKS": 1},
    78: {"REVISIONS": 1, "BACKS": 1, "DETACHES": 1, "ATTACHES": 1},
    79: {"N": 1, "REVISIONS": 1, "RESTORES": 1, "DETACHES": 1, "ATTACHES": 1},
}
"""What each mistake with destinations needs besides two transactions."""

PLANTS_KEYED = {
    80: {"REVISIONS": 1},
    81: {"REVISIONS": 1, "DETACHES": 1, "ATTACHES": 1},
    82: {"REVISIONS": 1, "DETACHES": 1, "RESTORES": 1},
    83: {"N": 2},
    84: {"N": 2},
    85: {"REVISIONS": 1},
    86: {"COMPACTIONS": 1, "DETACHES": 1, "ATTACHES": 1},
    87: {"COMPACTIONS": 1},
    88: {"N": 2},
    89: {"RESTORES": 1, "DETACHES": 1, "ATTACHES": 1},
}
"""What each mistake with the destination of a sink with keys needs besides one transaction."""


def search(of: Scenario, plant: int = 0) -> Found:
    """Let spin search a scenario, with a mistake planted or none."""
    defines = [f"-D{name}={value}" for name, value in {**of.settings, "PLANT": plant}.items()]
    defines += ["-DLIVE"] if of.live else []
    with tempfile.TemporaryDirectory(prefix="ratchet-model-") as directory:
        shutil.copy(of.model, directory)
        _run(["spin", "-a", *defines, of.model.name], directory)
        kind = [] if of.live else ["-DSAFETY"]
        # A plant's search is over before a compiler that optimises it would be.
        optimise = "-O1" if "plant" in of.name else "-O2"
        _run(["gcc", "-w", optimise, "-DCOLLAPSE", f"-DMEMLIM={MEMORY_MB}", *kind, "-o", "pan", "pan.c"], directory)
        started = time.monotonic()
        said = _run(["./pan", f"-m{DEPTH}", "-w24", *(["-a", "-f"] if of.live else [])], directory)
        seconds = time.monotonic() - started
        error = re.search(r"^pan:1: (.*?)(?: \(at depth \d+\))?$", said, re.MULTILINE)
        story = _run(["spin", "-t", *defines, of.model.name], directory) if error else ""
    told = [
        line.strip()
        for line in story.splitlines()
        if re.match(r"\s*(actor|a person|a destination|a backup|somebody|the run|maintenance)", line)
    ]
    return Found(
        error=_short(error[1]) if error else None,
        story="\n".join(told),
        complete=not re.search("Search not completed|search depth too small", said),
        states=int(float(_said(r"^\s*([\d.e+]+) states, stored", said))),
        depth=int(_said(r"depth reached (\d+)", said)),
        seconds=seconds,
    )


def check(of: Scenario) -> bool:
    """Search a scenario and print what came of it."""
    found = search(of)
    what = f"{of.name}: {of.what}"
    figures = f"{found.states:,} states, depth {found.depth:,}, {found.seconds:.1f} s"
    if found.error:
        print(f"BROKEN   {what}; {found.error}; after:\n{found.story}", flush=True)
    elif not found.complete:
        print(f"TOO BIG  {what}; {figures}; not all was searched", flush=True)
    else:
        print(f"holds    {what}; {figures}", flush=True)
    return found.complete and not found.error


def check_plant(number: int) -> bool:
    """Search for one mistake; it has to be found, and its scenario has to hold without it."""
    if number in PLANTS:
        small = scenario(f"plant {number}", words(PROTOCOL)[number], **{"N": 2, "CRASHES": 1, **PLANTS[number]})
    elif number in PLANTS_OUTSIDE:
        small = outside(f"plant {number}", words(OUTSIDE)[number], **{"N": 2, **PLANTS_OUTSIDE[number]})
    elif number in PLANTS_KEYED:
        small = keyed(f"plant {number}", words(KEYED)[number], **{"N": 1, **PLANTS_KEYED[number]})
    else:
        small = once(f"plant {number}", words(WRITTEN_ONCE)[number], **{"N": 1, "STRICT": 0, **PLANTS_ONCE[number]})
    found, without = search(small, plant=number), search(small)
    caught = bool(found.error) and not without.error and without.complete
    said = f"{found.error}, after {len(found.story.splitlines())} steps" if found.error else "nothing found"
    print(f"{'caught ' if caught else 'MISSED '}  {number}: {small.what}; {said}; {found.seconds:.1f} s", flush=True)
    return caught


def words(model: Path) -> dict[int, str]:
    """What is wrong with each plant of a model, as the model says it."""
    found = re.findall(r"#(?:el)?if .*PLANT (?:==|!=) (\d+) /\* (.*?) \*/", model.read_text())
    return {int(number): said for number, said in found}


def main(names: list[str]) -> int:
    """Check the scenarios of these names, or all of them and the plants; the exit status."""
    for program in ("spin", "gcc"):
        if shutil.which(program) is None:
            print(f"the model needs {program}; Debian: apt-get install spin gcc", file=sys.stderr)
            return 2
    models = {PROTOCOL: PLANTS, WRITTEN_ONCE: PLANTS_ONCE, OUTSIDE: PLANTS_OUTSIDE, KEYED: PLANTS_KEYED}
    for model, plants in models.items():
        assert set(words(model)) == set(plants), f"{model.name}: a plant has no scenario, or a scenario no plant"
    unknown = set(names) - {s.name for s in SCENARIOS}
    if unknown:
        known = ", ".join(s.name for s in SCENARIOS)
        print(f"no scenario {', '.join(sorted(unknown))}; there are: {known}", file=sys.stderr)
        return 2
    with ThreadPoolExecutor(2) as pool:
        held = list(pool.map(check, [s for s in SCENARIOS if not names or s.name in names]))
        caught = list(pool.map(check_plant, [n for of in models.values() for n in of if not names]))
    print(f"{sum(held)} of {len(held)} scenarios hold, {sum(caught)} of {len(caught)} plants are caught")
    return 0 if all(held) and all(caught) else 1


def _short(error: str) -> str:
    """The assertion that failed; the long one is that of a line at rest."""
    return "the line has come to rest unfinished" if "head==last" in error or len(error) > 400 else error


def _run(command: list[str], directory: str) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    # pan exits with 0 whatever it finds; spin -t says by its status what the story says too.
    if done.returncode != 0 and command[:2] != ["spin", "-t"]:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def _said(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    if found is None:
        raise SystemExit(f"spin's search says nothing like {pattern!r}:\n{text[-2000:]}")
    return found[1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
