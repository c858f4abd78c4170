"""Builds and starts the whole system by compose, says what it did, and checks it if asked.

deploy/up.sh --check --output loadtest/results/compose.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from deploy.compose import docker, dotenv
from deploy.compose.docker import Failed
from deploy.compose.first_token import KeyNeeded, wait_first_token
from deploy.compose.report import Report
from deploy.compose.system import System

PORTS = {"PORT": "8000", "PROMETHEUS_PORT": "9090", "GRAFANA_PORT": "3000"}
FIRST_TOKEN_SECONDS = 300.0
WANTED_FILES = 65_536
SERVING = ("engine", "worker", "gateway", "haproxy")


def main() -> int:
    """0; 1 when something failed, or was not as it should be."""
    arguments = _parser().parse_args()
    try:
        system = _system(arguments)
        if arguments.down:
            system.down()
            return 0
        return _up(system, arguments)
    except (Failed, TimeoutError, ValueError) as error:
        print(f"deploy/up.sh: {error}", file=sys.stderr)
        return 1


def _system(arguments: argparse.Namespace) -> System:
    """The project as it is asked for, and else as .env remembers it; a check has one of its own.
    What is asked for goes before the same variable of this process."""
    wanted = {"MODEL": arguments.model, "GATEWAYS": arguments.gateways}
    asked = {name: str(value) for name, value in wanted.items() if value}
    if arguments.check:
        files = ["docker-compose.yml", *arguments.file]
        environment = _environment(_free_ports()) | asked
        return System(arguments.project or "penstock-check", files, environment)
    known = dotenv.read()
    before = known.get("COMPOSE_FILE", "docker-compose.yml").split(":")
    files = ["docker-compose.yml", *arguments.file] if arguments.file else before
    project = arguments.project or known.get("COMPOSE_PROJECT_NAME", "penstock")
    if not arguments.down:
        given, secret = dotenv.given_variables()
        values = given | asked
        values |= {"COMPOSE_PROJECT_NAME": project, "COMPOSE_FILE": ":".join(files)}
        for line in dotenv.remember(values):
            print(f".env: {line}")
        for name in secret:
            print(f".env: not {name}, which is or holds a credential; a later `up` needs it again")
    return System(project, files, _environment(PORTS | dotenv.read()) | asked)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="deploy/up.sh", description=__doc__.splitlines()[0])
    parser.add_argument("--model", metavar="MODEL", help="what is served, later too")
    parser.add_argument("--gateways", type=int, metavar="N", help="how many, later too")
    parser.add_argument("--no-build", action="store_true", help="the images are there")
    parser.add_argument("--project", metavar="NAME", help="compose's project name")
    parser.add_argument(
        "--file", action="append", default=[], metavar="FILE", help="an override; repeatable"
    )
    parser.add_argument("--down", action="store_true", help="stop it and remove its volumes")
    checking = parser.add_argument_group("checking (in a project of its own, on free ports)")
    checking.add_argument("--check", action="store_true", help="kill, restart, compare; then down")
    checking.add_argument("--keep", action="store_true", help="leave it running after the check")
    checking.add_argument("--streams", type=int, default=64, help="while containers are killed")
    checking.add_argument("--restarting", type=int, default=16, help="streams during restarts")
    checking.add_argument("--tokens", type=int, default=48, help="of each answer")
    checking.add_argument("--kills", type=int, default=1, help="of each kind of container")
    checking.add_argument("--output", type=Path, help="JSON file; the same as .md beside it")
    return parser


def _up(system: System, arguments: argparse.Namespace) -> int:
    services = system.tree()["services"]
    gateways = arguments.gateways or (1 if arguments.check else services["gateway"]["scale"])
    report = Report(gateways, left_out=system.left_out)
    started = None
    if arguments.check:
        from loadtest.report.facts import now

        started = now()
        system.down()
    if not arguments.no_build:
        _timed(report, "building the images, unless they are there", system.build)
    environment = _bounded_by_engine(system, remembers=not arguments.check)
    url = f"http://127.0.0.1:{environment['PORT']}"
    base = environment.get("BASE_IMAGE") or "python:3.11-slim-bookworm"
    report.image_mb = system.image_sizes(base)
    report.engine = {"engine": docker.docker("version", "-f", "{{.Server.Version}}").strip()}
    system.choose_services()
    try:
        begun = time.monotonic()
        system.up(gateways=gateways)
        report.seconds["`compose up` returns"] = time.monotonic() - begun
        with contextlib.suppress(KeyNeeded):
            wait_first_token(url, FIRST_TOKEN_SECONDS)
            report.seconds["from `compose up` to the first token through haproxy"] = (
                time.monotonic() - begun
            )
        system.wait_ready(*SERVING)
        report.seconds["until every container says it is healthy"] = time.monotonic() - begun
        report.rss_mib = system.memory()
        if arguments.check:
            _check(system, url, report, arguments)
    finally:
        if arguments.check and not arguments.keep:
            system.down()
    _say(report, url, environment, arguments, started)
    return 1 if report.findings is not None and report.findings.wrong else 0


def _check(system: System, url: str, report: Report, arguments: argparse.Namespace) -> None:
    from deploy.compose.check import Amount, Check
    from testing.streams.reading import Broken

    amount = Amount(
        streams=arguments.streams,
        tokens=arguments.tokens,
        kills=arguments.kills,
        restarting=arguments.restarting,
    )
    image = system.tree()["services"]["gateway"]["image"]
    check = Check(system, url, image, amount)
    report.findings = check.findings
    try:
        check.run()
    except (Failed, TimeoutError, Broken) as error:
        # What was seen so far is told too.
        check.findings.wrong.append(f"it could not go on: {error}")
    report.seconds |= check.findings.seconds


def _say(
    report: Report,
    url: str,
    environment: dict[str, str],
    arguments: argparse.Namespace,
    started: Any,
) -> None:
    print(report.markdown())
    if arguments.check:
        if arguments.output is not None:
            _write(report, arguments.output, started)
        return
    print(f"Penstock is ready: {url}  (the page, and OpenAI's API under {url}/v1)")
    for name, variable in (("prometheus", "PROMETHEUS_PORT"), ("grafana", "GRAFANA_PORT")):
        if name not in report.left_out:
            print(f"{name}: http://127.0.0.1:{environment[variable]}")
    print("Stop it: deploy/up.sh --down  (the prepared model goes too)")


def _write(report: Report, output: Path, started: Any) -> None:
    from loadtest.report.facts import machine_line, run_facts

    facts = run_facts("-m deploy.compose", sys.argv[1:], started)
    data = {**facts, **report.as_data()}
    output.write_text(json.dumps(data, indent=2, default=str) + "\n", encoding="utf-8")
    words = f"# Compose\n\n{machine_line(facts)}, container engine {report.engine['engine']}.\n\n"
    output.with_suffix(".md").write_text(words + report.markdown(), encoding="utf-8")


def _environment(known: Mapping[str, str]) -> dict[str, str]:
    """The ports, which are needed here too; what this process was given goes first."""
    return {name: os.environ.get(name) or known[name] for name in PORTS}


def _free_ports() -> dict[str, str]:
    return {name: str(_free_port()) for name in PORTS}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _bounded_by_engine(system: System, *, remembers: bool) -> dict[str, str]:
    """Fewer open files where the container engine itself may not have as many. remembers: in .env
    too, for a later `up` would fail without."""
    image = system.tree()["services"]["gateway"]["image"]
    shell = ["run", "--rm", "--network", "none", "--entrypoint", "sh", image, "-c", "ulimit -Hn"]
    told = docker.docker(*shell).strip()
    wanted = int(os.environ.get("OPEN_FILES") or dotenv.read().get("OPEN_FILES") or WANTED_FILES)
    if told.isdigit() and int(told) < wanted:
        bounds = {"OPEN_FILES": told, "LB_MAXCONN": str((int(told) - 200) // 2)}
        system.environment |= bounds
        if remembers:
            dotenv.remember(bounds)
        print(f"this engine allows {told} open files: haproxy takes fewer connections")
    return system.environment


def _timed(report: Report, name: str, action: Callable[[], object]) -> None:
    begun = time.monotonic()
    action()
    report.seconds[name] = time.monotonic() - begun


if __name__ == "__main__":
    sys.exit(main())
