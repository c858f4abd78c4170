"""One run from options to report."""

from __future__ import annotations

import asyncio
import datetime
import ssl
import sys
import time
from collections import Counter

from tqdm import tqdm

from penstock.bench.load.options import LoadOptions
from penstock.bench.load.record import ErrorKind, RequestRecord
from penstock.bench.load.report import LoadReport
from penstock.bench.load.runner import LoadRun, allow_many_sockets, new_event_loop
from penstock.bench.load.statistics import summarise
from penstock.bench.load.target import Target, TargetError
from penstock.bench.load.workload import Workload


def run(
    options: LoadOptions,
    *,
    api_key: str | None = None,
    tls: ssl.SSLContext | None = None,
    progress: bool = True,
) -> LoadReport:
    """Warms up, measures, sums up.  tls: for https; None: trusts what the system trusts.

    Raises TargetError where the server can't be used: no model to name, or not one warm-up request
    that succeeds.
    """
    target = Target.from_url(options.url, api_key, tls)
    model = options.model or target.first_model()
    version = target.version()
    allow_many_sockets()
    started = datetime.datetime.now(datetime.UTC)
    cpu_before = time.process_time()
    with (
        tqdm(total=options.requests, unit="req", disable=not progress) as bar,
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        load = LoadRun(target, Workload(options, model), options, _Progress(bar))
        runner.run(_warm_and_measure(load))
    return LoadReport(
        command=["penstock", *sys.argv[1:]],
        options=options,
        model=model,
        server_version=version,
        started=started,
        ended=datetime.datetime.now(datetime.UTC),
        generator_cpu_s=time.process_time() - cpu_before,
        warmup_errors=_errors(load.warmup_records),
        summary=summarise(load.records),
    )


class _Progress:
    """The bar counts ended requests and names the errors so far."""

    def __init__(self, bar: tqdm) -> None:
        self._bar = bar
        self._failed = 0

    def __call__(self, record: RequestRecord) -> None:
        if record.error is not None:
            self._failed += 1
            self._bar.set_postfix(failed=self._failed, refresh=False)
        self._bar.update()


async def _warm_and_measure(load: LoadRun) -> None:
    await load.warm_up()
    failed = [record for record in load.warmup_records if record.error is not None]
    fatal = [record for record in failed if record.error != ErrorKind.CUT_OFF]
    if fatal and len(failed) == len(load.warmup_records):
        raise TargetError(
            f"every warm-up request failed, the first with {fatal[0].error}: "
            f"{fatal[0].error_detail}"
        )
    await load.measure()


def _errors(records: list[RequestRecord]) -> dict[str, int]:
    return dict(Counter(record.error for record in records if record.error is not None))
