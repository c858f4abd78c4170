"""Streams of AsyncLLM, one after the other and together; then one that is given up."""

import asyncio

from penstock import AsyncEngineArgs, AsyncLLM, RequestOutputKind, SamplingParams


async def stream(engine, prompt, request_id, kind, **more):
    params = SamplingParams(temperature=0, max_tokens=20, output_kind=kind, **more)
    pieces = []
    async for output in engine.generate(
        request_id=request_id, prompt=prompt, sampling_params=params
    ):
        for completion in output.outputs:
            pieces.append(completion.text)
        if output.finished:
            print(f"{request_id}: finished after {len(pieces)} pieces")
            break
    return pieces


async def main():
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model="smollm2-135m", max_model_len=512))
    try:
        prompt = "One, two, three,"
        deltas = await stream(engine, prompt, "delta", RequestOutputKind.DELTA)
        grown = await stream(engine, prompt, "grown", RequestOutputKind.CUMULATIVE)
        whole = await stream(engine, prompt, "whole", RequestOutputKind.FINAL_ONLY)
        assert "".join(deltas) == grown[-1] == whole[0]
        assert len(whole) == 1 < len(deltas)
        together = await asyncio.gather(
            *(stream(engine, prompt, f"{n}", RequestOutputKind.DELTA) for n in range(4))
        )
        assert all("".join(pieces) == whole[0] for pieces in together)
        tokenizer = await engine.get_tokenizer()
        assert tokenizer.encode("Hello")

        long = SamplingParams(max_tokens=400, ignore_eos=True)
        seen = []
        async for output in engine.generate("Tell me", long, request_id="given up"):
            if not seen:
                await engine.abort("given up")
            seen.append(output)
        assert seen[-1].outputs[0].finish_reason == "abort"
        assert len(seen[-1].outputs[0].token_ids) < 400
    finally:
        engine.shutdown()


asyncio.run(main())
