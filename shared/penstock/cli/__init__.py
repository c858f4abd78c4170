"""The `penstock` command.

main, commands, parser   dispatch; the list of commands; help and errors
serve, run, chat, transcribe, batch, models, show, keys   commands that serve and use a model
status, top, health, doctor, recommend   commands that look at a system
replay                        looks back at a recording
process_arguments, processes  the commands that are one process of the system
completion, table             a shell's completion; the reference table of all flags
answers, media_files, sampling_arguments   what run and chat are made of
batch_file                    the file that batch answers
http_client, terminal         a running system; what the terminal can show
"""
