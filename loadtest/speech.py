"""How fast a recording becomes text: beside faster-whisper, and the same words as transformers'.

    bash loadtest/peers/install.sh fasterwhisper   # once
    python -m loadtest.speech                      # some three minutes
    python -m loadtest.speech --seconds 120 --repeats 9 --output FOLDER

A Whisper in the shape of the release `tiny` with made-up weights, in float32 on both sides (see
speech_model.py). Penstock is asked over HTTP, as OpenAI's client asks; faster-whisper (CTranslate2)
in its own process, by its own function. Both are greedy and decode as many tokens. They take turns
for some rounds, so that each has the machine to itself, and one that others disturb disturbs both.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import httpx
import numpy as np

from loadtest.peers.servers import installed
from loadtest.report import Document, Flags, Measurement, machine_line, say, table
from loadtest.speech_model import WORDS, tokenizer, write_speaker
from penstock.process.machine import usable_cores
from penstock_kernels.cpu.library import instruction_set
from testing.recordings import RATE, tones, wav
from testing.serving import Server

PEER = Path(__file__).parent / "peers" / "speech_peer.py"
COLUMNS = {
    "system": "{name}",
    "seconds for the recording": "{seconds:.2f}",
    "seconds of audio per second": "{speed:.1f}",
    "fastest, slowest": "{fastest:.2f}, {slowest:.2f}",
    "tokens": "{tokens}",
    "text as transformers'": "{equal}",
}


@dataclass(slots=True)
class System:
    """What one of them took. tokens: decoded for the recording, timestamps included."""

    name: str
    seconds: list[float] = field(default_factory=list)
    text: str = ""
    tokens: int = 0


def measure(flags: Flags) -> Document:
    python = installed("fasterwhisper", "python")
    threads = max(int(usable_cores()), 1)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        recording = place / "recording.wav"
        recording.write_bytes(wav(tones(flags.seconds, seed=1)))
        model = write_speaker(place / "speaker")
        say("transformers")
        wanted = by_transformers(model, tones(flags.seconds, seed=1))
        ours = System("penstock")
        peer = System("faster-whisper")
        run(python, PEER, "convert", model, place / "converted", sysconfig.get_path("purelib"))
        for _ in range(flags.rounds):
            by_penstock(ours, model, recording, flags.repeats)
            by_peer(peer, python, place / "converted", recording, threads, flags.repeats)
    rows = [asdict(ours), asdict(peer)]
    return {
        "recording": flags.seconds,
        "threads": threads,
        "instruction_set": instruction_set(),
        "text": wanted,
        "systems": [row | {"equal": plain(row["text"]) == plain(wanted)} for row in rows],
    }


def by_transformers(model: Path, samples: np.ndarray) -> str:
    """The text of its own long-form algorithm."""
    import torch
    from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

    theirs = WhisperForConditionalGeneration.from_pretrained(model).eval()
    given = WhisperFeatureExtractor.from_pretrained(model)(
        samples,
        sampling_rate=RATE,
        return_tensors="pt",
        truncation=False,
        padding="longest",
        return_attention_mask=True,
    )
    with torch.no_grad():
        found = theirs.generate(**given, return_timestamps=True, language="en", task="transcribe")
    return str(tokenizer().decode([token for token in found[0].tolist() if token < WORDS]))


def by_penstock(system: System, model: Path, recording: Path, repeats: int) -> None:
    """The endpoint's answers. Each is to a recording of its own, so that nothing is found in a
    cache: its first sample differs, which no word depends on."""
    say("penstock")
    with Server(str(model), "--dtype", "float32") as server, httpx.Client(timeout=600) as client:
        for number in range(repeats + 1):
            data = changed(recording.read_bytes(), number)
            begun = time.perf_counter()
            reply = client.post(
                f"{server.url}/v1/audio/transcriptions",
                files={"file": ("recording.wav", data)},
                data={"language": "en", "response_format": "verbose_json"},
            )
            took = time.perf_counter() - begun
            told = reply.raise_for_status().json()
            system.tokens = sum(len(segment["tokens"]) for segment in told["segments"])
            system.text = told["text"]
            if number:
                system.seconds.append(took)


def changed(file: bytes, number: int) -> bytes:
    """The recording with another first sample. number: below 128."""
    header = 44
    return file[:header] + bytes([number, 0]) + file[header + 2 :]


def by_peer(
    system: System, python: Path, model: Path, recording: Path, threads: int, repeats: int
) -> None:
    """What faster-whisper takes, in its own process and environment."""
    say("faster-whisper")
    said = run(python, PEER, "run", model, recording, threads, repeats)
    found = json.loads(said.splitlines()[-1])
    versions = found["versions"].items()
    system.name = ", ".join(f"{name} {version}" for name, version in versions)
    system.seconds += found["seconds"]
    system.text, system.tokens = found["text"], found["tokens"]


def run(*command: object) -> str:
    """What it wrote to stdout. Raises CalledProcessError; what it says on stderr is shown."""
    return subprocess.run(
        [*map(str, command)], check=True, text=True, stdout=subprocess.PIPE
    ).stdout


def plain(text: str) -> str:
    """Words with one blank between them: how segments are joined isn't what is compared."""
    return " ".join(text.split())


def faults(document: Document) -> bool:
    """Whether a text or the number of tokens differs, or the peer is faster."""
    ours, peer = document["systems"]
    if ours["tokens"] != peer["tokens"]:
        return True
    slower = median(ours["seconds"]) > median(peer["seconds"])
    return slower or not (ours["equal"] and peer["equal"])


def markdown(document: Document) -> str:
    rows = []
    for each in document["systems"]:
        middle = median(each["seconds"])
        bounds = {"fastest": min(each["seconds"]), "slowest": max(each["seconds"])}
        row = {name: each[name] for name in ("name", "tokens")}
        row |= {"seconds": middle, "speed": document["recording"] / middle}
        rows.append(row | bounds | {"equal": "yes" if each["equal"] else "no"})
    ratio = rows[0]["speed"] / rows[1]["speed"]
    return (
        f"{machine_line(document)}\n\n{table(COLUMNS, rows)}\n\n"
        f"A recording of {document['recording']} s, {document['threads']} threads, float32, "
        f"{document['instruction_set']}; medians of {len(document['systems'][0]['seconds'])}. "
        f"Penstock has {ratio:.2f} times the speed of the other.\n"
    )


FLAGS = {
    "--seconds": (60, "of the recording"),
    "--rounds": (2, "in which the systems take turns"),
    "--repeats": (3, "of each system in a round, after one that isn't counted"),
}
COMMAND = Measurement("speech", __doc__, measure, markdown, FLAGS, faults=faults)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
