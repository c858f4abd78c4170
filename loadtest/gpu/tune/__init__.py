"""Which tile sizes are best on this machine's GPU: `python -m loadtest.gpu.tune`.

__main__      installs what is missing, then starts supervise
supervise     starts the two kinds of processes below, and reports
families      the kernels whose tiles are a choice, in the order of what matters most
settings      a choice: what it is now, what else to try, in which shapes
attention, products, rows    the choices of one kind of kernel, and references for their results
candidates    everything to try, in the order in which it is tried
ahead         compiles candidates in processes without a GPU, before they are needed
sweep         checks and times what is compiled, in one process with the GPU
lines         what it writes
advice        what should be changed, by how much
tables, plot  the report

Nothing here changes `tiles.py`: tiles are part of the numbers.
"""
