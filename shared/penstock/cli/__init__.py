"""The `penstock` command.

main, commands, parser   dispatch; the list of commands; help and errors
serve, run, chat, pull, list_models, show, remove, status, top, doctor, bench, completion, table,
engine_tools a command each (the last one: replay, simulate, fit-cost)
sizes                    what list, show and remove print
process_arguments, processes   the commands that are one process of the system
answers, conversation, line_input, sampling_arguments   what run and chat are made of
system_state, top_view   what status and top know and draw
http_client, terminal    a running system; what the terminal can show
config_tree, flags       the configuration's leaves; flags made of them
"""
