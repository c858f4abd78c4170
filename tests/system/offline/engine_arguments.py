"""A command line that is the engine's, with a few flags of the script's own."""

from penstock import LLM, EngineArgs, FlexibleArgumentParser


def parser():
    made = FlexibleArgumentParser()
    EngineArgs.add_cli_args(made)
    made.set_defaults(model="smollm2-135m")
    made.add_argument("--max-tokens", type=int)
    made.add_argument("--temperature", type=float)
    made.add_argument("--top-k", type=int)
    return made


def main(arguments):
    wanted = {name: arguments.pop(name) for name in ("max_tokens", "temperature", "top_k")}
    llm = LLM(**arguments)
    params = llm.get_default_sampling_params()
    for name, value in wanted.items():
        if value is not None:
            setattr(params, name, value)
    outputs = llm.generate(["Hello, my name is", "The sky is"], params)
    for output in outputs:
        print(output.prompt, output.outputs[0].text)
    assert all(len(output.outputs[0].token_ids) <= 7 for output in outputs)


line = ["--max_model_len", "512", "--swap-space", "0", "--tensor-parallel-size", "1"]
main(vars(parser().parse_args([*line, "--enforce-eager", "--max-tokens", "7"])))
