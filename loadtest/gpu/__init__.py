"""One command's measurements on a machine with a GPU: `loadtest/gpu/run.sh`.

start         (run.sh) installs what is missing from the folder of wheels, then runs this package
wheels        which wheels that takes; wheels.sh downloads them
__main__      runs the parts, each in a process of its own and within its time, and reports
parts         what is measured: a file for each
job           a part's process: its time, its rows, and how it ended
extent        how large everything is, for a GPU and for a trial without one
shapes        the models' shapes; model_folder writes them as folders that anybody can load
cost          bytes and operations of a model's steps and of single kernels
timing        seconds of one call on the device
stepper       drives the worker's runner with steps made by hand
device_time   how long the device was at work and idle, from a profile
workload      requests of random lengths
engine_metrics   what an engine core counts of its steps
report, targets, plots    tables, what was aimed at, charts
"""
