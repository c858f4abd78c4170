"""One command's measurements on a machine with a GPU: `loadtest/gpu/run.sh`."""
