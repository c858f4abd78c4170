"""When the tokens of a transcript are spoken, by a decoder's attention to the sound.

Some heads of a Whisper model attend to the place in the sound that the next token is about. The
text, which is known by then, goes through the decoder once more; what these heads ask for and what
the encoder's rows offer them is kept, and the best monotonic way through the weights gives each
token its time.
"""
